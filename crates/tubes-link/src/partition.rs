//! Which owner has a tube, and which an id.

use tubes_core::{PARTITIONS, partition_of};

/// Which owner has each partition, and which ids carry one.
#[derive(Debug, Clone)]
pub struct PartitionMap {
    slots: [u16; PARTITIONS],
    owners: u16,
    single_ids_below: u64,
}

impl PartitionMap {
    /// The map of a manifest; `None` if it names an owner that is not there, or not all partitions.
    #[must_use]
    pub fn new(slots: &[u16], owners: u16, single_ids_below: u64) -> Option<Self> {
        let slots: [u16; PARTITIONS] = slots.try_into().ok()?;
        let is_valid = owners > 0 && owners as usize <= PARTITIONS && slots.iter().all(|slot| *slot < owners);
        is_valid.then_some(PartitionMap { slots, owners, single_ids_below })
    }

    /// The map of a directory that is made for so many owners: partition mod owners.
    #[must_use]
    pub fn spread(owners: u16) -> Self {
        let owners = owners.clamp(1, PARTITIONS as u16);
        PartitionMap { slots: std::array::from_fn(|partition| partition as u16 % owners), owners, single_ids_below: 0 }
    }

    /// Number of owners.
    #[must_use]
    pub fn owners(&self) -> u16 {
        self.owners
    }

    /// Ids below carry no partition: they were given before the server was divided.
    #[must_use]
    pub fn single_ids_below(&self) -> u64 {
        self.single_ids_below
    }

    /// The owner of a tube.
    #[must_use]
    pub fn of_tube(&self, name: &[u8]) -> u16 {
        self.slots[partition_of(name)]
    }

    /// The owner of an id; `None` if every owner must be asked.
    #[must_use]
    pub fn of_id(&self, id: u64) -> Option<u16> {
        (id >= self.single_ids_below).then(|| self.slots[id as usize % PARTITIONS])
    }
}

#[cfg(test)]
mod tests {
    use super::PartitionMap;

    #[test]
    fn an_id_leads_to_its_partitions_owner_and_an_old_one_to_all() {
        let slots: Vec<u16> = (0..64).map(|partition| partition % 3).collect();
        let map = PartitionMap::new(&slots, 3, 1000).unwrap();
        assert_eq!(map.of_id(999), None);
        assert_eq!(map.of_id(64 * 20 + 5), Some(2));
        assert!(PartitionMap::new(&slots, 2, 0).is_none());
        assert!(PartitionMap::new(&slots[1..], 3, 0).is_none());
    }
}
