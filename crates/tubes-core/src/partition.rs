//! Which partition a tube belongs to.

use xxhash_rust::xxh3::xxh3_64;

/// Partitions of tube names, for ever; an id carries its tube's partition as `counter × 64 + partition`.
pub const PARTITIONS: usize = 64;

/// The partition that a tube name belongs to, for ever.
#[must_use]
pub fn partition_of(name: &[u8]) -> usize {
    (xxh3_64(name) % PARTITIONS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::partition_of;

    #[test]
    fn a_name_keeps_its_partition_for_ever() {
        // Another value would send every client to another owner than the one with its jobs.
        assert_eq!(["default", "a", "d"].map(|name| partition_of(name.as_bytes())), [26, 31, 10]);
    }
}
