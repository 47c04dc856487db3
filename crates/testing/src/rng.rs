//! Random numbers that are the same on every machine and in every version: a seed printed by a failing test must replay
//! the failure years later.
//!
//! Owns: xoshiro256** seeded by splitmix64, and the few draws the tests need.
//! Never: takes entropy from anywhere but its seed, and never changes its sequence.

/// A stream of random numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of splitmix64: a good mix of `state`, which it advances.
pub fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Rng {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        let mut state = seed;
        Rng { state: std::array::from_fn(|_| splitmix64(&mut state)) }
    }

    /// A stream of its own that depends on this one's state and on `salt`.
    #[must_use]
    pub fn fork(&mut self, salt: u64) -> Rng {
        Rng::new(self.next_u64() ^ salt.rotate_left(32))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert_ne!(end, 0, "no number is below 0");
        // The bias of at most end / 2^64 is of no consequence to a test, and the draw never loops.
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range: {low}..={high}");
        match (high - low).checked_add(1) {
            Some(count) => low + self.below(count),
            None => self.next_u64(),
        }
    }

    /// A number below `end`, as an index or a 32-bit number needs it.
    pub fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a usize")
    }

    /// `true` with a probability of `numerator` in `denominator`.
    pub fn chance(&mut self, numerator: u32, denominator: u32) -> bool {
        self.below(u64::from(denominator)) < u64::from(numerator)
    }

    /// One of `choices`.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// Index of one of `weights`, each as likely as its share of the sum.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        let mut left = self.below(total);
        for (index, weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(*weight)) {
                None => return index,
                Some(rest) => left = rest,
            }
        }
        unreachable!("a draw below the sum of all weights lies in one of them")
    }

    /// Fills `bytes` with random ones.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.next_u64().to_le_bytes()[..piece.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Rng, splitmix64};

    #[test]
    fn splitmix_gives_the_published_sequence() {
        let mut state = 1_234_567;
        let drawn: Vec<u64> = (0..3).map(|_| splitmix64(&mut state)).collect();
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn xoshiro_gives_the_sequence_of_its_reference() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..5).map(|_| rng.next_u64()).collect();
        assert_eq!(drawn, [11_520, 0, 1_509_978_240, 1_215_971_899_390_074_240, 1_216_172_134_540_287_360]);
    }

    #[test]
    fn draws_stay_in_their_range_and_reach_both_ends() {
        let mut rng = Rng::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..1_000 {
            seen[rng.index(5)] += 1;
            assert!((3..=9).contains(&rng.between(3, 9)));
        }
        assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
        assert_eq!((0..100).filter(|_| rng.weighted(&[0, 1, 0]) == 1).count(), 100);
    }
}
