//! Random numbers from a seed, so that the same log gives the same advice.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014): enough for resampling, and never for secrets.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// The numbers of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `below`, which is at least 1. For the sizes here its bias is below 1e-12.
    pub fn below(&mut self, below: usize) -> usize {
        let wide = u128::from(self.draw()) * below.max(1) as u128;
        (wide >> 64) as usize
    }
}
