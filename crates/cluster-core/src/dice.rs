//! Chance from a seed: identities and the spread of times.

use std::time::Duration;

use crate::MemberId;

/// xoshiro256**. The seed must come from the system's randomness, all of it: identities are drawn here.
#[derive(Clone)]
pub struct Dice {
    state: [u64; 4],
}

impl std::fmt::Debug for Dice {
    /// Without the state, from which the next identity follows.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Dice").finish_non_exhaustive()
    }
}

impl Dice {
    /// From 256 random bits.
    #[must_use]
    pub const fn new(seed: [u64; 4]) -> Self {
        // All zeros would stay zeros.
        Self { state: [seed[0], seed[1], seed[2], seed[3] | (1 << 63)] }
    }

    fn next(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A fresh identity: a random UUID (version 4).
    pub fn member(&mut self) -> MemberId {
        let bits = u128::from(self.next()) << 64 | u128::from(self.next());
        MemberId(bits & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62)
    }

    /// `length`, or up to a fifth less: never later than it should be.
    pub fn shorten(&mut self, length: Duration) -> Duration {
        length - self.below(length / 5)
    }

    /// From zero to `length`.
    pub fn below(&mut self, length: Duration) -> Duration {
        let nanoseconds = (length.as_nanos() * u128::from(self.next())) >> 64;
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}
