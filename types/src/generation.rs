/// Number of one immutable version of the shared configuration. Starts at 1; 0 means "none yet".
///
/// Generations are ordered but never subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct Generation(u64);

impl Generation {
    /// A generation read from storage or from the wire.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, for storage, the wire and display.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The generation after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl core::fmt::Display for Generation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Generation;

    #[test]
    fn next_is_greater_and_saturates() {
        assert!(Generation::new(7).next() > Generation::new(7));
        assert_eq!(Generation::new(u64::MAX).next(), Generation::new(u64::MAX));
    }
}
