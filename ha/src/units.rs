//! Values with a unit or a range: [`Vrid`], [`Priority`], [`Centiseconds`], [`MonoTime`].

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A number outside the range of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// Virtual router ids are 1 to 255 (RFC 9568 §5.2.3).
    #[error("a virtual router id is 1 to 255, not {0}")]
    Vrid(u8),
    /// Configured priorities are 3 to 254; 0 and 255 have a meaning of their own (RFC 9568 §5.2.4), and so have
    /// [`Priority::CLAIM`] and [`Priority::IMPAIRED`].
    #[error("a configured priority is 3 to 254, not {0}")]
    Priority(u8),
    /// Advertisement intervals are 1 to 4,095 centiseconds (RFC 9568 §5.2.6, 12 bits).
    #[error("an advertisement interval is 1 to 4095 centiseconds, not {0}")]
    Centiseconds(u16),
    /// An interval that is no whole number of centiseconds, or out of range.
    #[error("an advertisement interval is 10 ms to 40.95 s in steps of 10 ms, not {0:?}")]
    Interval(Duration),
}

/// Virtual router id, 1 to 255.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Vrid(u8);

impl Vrid {
    /// Checks the number.
    ///
    /// # Errors
    /// [`RangeError::Vrid`] for 0.
    pub const fn new(id: u8) -> Result<Self, RangeError> {
        if id == 0 {
            Err(RangeError::Vrid(id))
        } else {
            Ok(Self(id))
        }
    }

    /// 1 to 255.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u8> for Vrid {
    type Error = RangeError;
    fn try_from(id: u8) -> Result<Self, RangeError> {
        Self::new(id)
    }
}

impl From<Vrid> for u8 {
    fn from(id: Vrid) -> Self {
        id.0
    }
}

impl fmt::Display for Vrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Priority of an advert, 0 to 255; the higher one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Priority(u8);

impl Priority {
    /// The sender gives ownership up (RFC 9568 §5.2.4).
    pub const RELEASE: Self = Self(0);
    /// The sender asks whether anybody owns the addresses: the lowest priority there is, so that it displaces no
    /// owner and every owner answers it at once (RFC 9568 §6.4.3).
    pub const CLAIM: Self = Self(1);
    /// The sender has lost a leg beside that of the adverts: it owns only while nobody better does. Lower than what a node
    /// is configured with, above [`Self::CLAIM`].
    pub const IMPAIRED: Self = Self(2);
    /// Least a node may be configured with.
    pub const LEAST: Self = Self(Self::IMPAIRED.0 + 1);
    /// Greatest a node may be configured with.
    pub const MOST: Self = Self(Self::OWNER.0 - 1);
    /// The sender owns the addresses on its interface (RFC 9568 §5.2.4). Received only; onearm never is one.
    pub const OWNER: Self = Self(255);

    /// A priority a node may be configured with: [`Self::LEAST`] to [`Self::MOST`].
    ///
    /// # Errors
    /// [`RangeError::Priority`] for 0, 1, 2 and 255.
    pub const fn configured(priority: u8) -> Result<Self, RangeError> {
        if priority < Self::LEAST.0 || priority > Self::MOST.0 {
            return Err(RangeError::Priority(priority));
        }
        Ok(Self(priority))
    }

    /// A priority as it stands on the wire; every value is possible.
    pub const fn from_wire(priority: u8) -> Self {
        Self(priority)
    }

    /// 0 to 255.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Advertisement interval as the wire carries it: 1 to 4,095 hundredths of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Centiseconds(u16);

impl Centiseconds {
    /// Checks the number.
    ///
    /// # Errors
    /// [`RangeError::Centiseconds`] for 0 and above 4,095.
    pub const fn new(hundredths: u16) -> Result<Self, RangeError> {
        match hundredths {
            1..=4095 => Ok(Self(hundredths)),
            _ => Err(RangeError::Centiseconds(hundredths)),
        }
    }

    /// 1 to 4,095.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The same span in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0 as u64 * 10_000_000
    }
}

impl TryFrom<u16> for Centiseconds {
    type Error = RangeError;
    fn try_from(hundredths: u16) -> Result<Self, RangeError> {
        Self::new(hundredths)
    }
}

impl TryFrom<Duration> for Centiseconds {
    type Error = RangeError;
    fn try_from(interval: Duration) -> Result<Self, RangeError> {
        let error = RangeError::Interval(interval);
        if !interval.subsec_nanos().is_multiple_of(10_000_000) {
            return Err(error);
        }
        u16::try_from(interval.as_millis() / 10)
            .ok()
            .and_then(|n| Self::new(n).ok())
            .ok_or(error)
    }
}

impl From<Centiseconds> for u16 {
    fn from(interval: Centiseconds) -> Self {
        interval.0
    }
}

impl From<Centiseconds> for Duration {
    fn from(interval: Centiseconds) -> Self {
        Self::from_millis(u64::from(interval.0) * 10)
    }
}

/// A moment on `CLOCK_MONOTONIC`, in nanoseconds since its origin: what `bpf_ktime_get_ns` reads.
///
/// Sums saturate; the clock itself needs 584 years to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MonoTime(u64);

impl MonoTime {
    /// Before every other moment; as a lease deadline: no lease.
    pub const ZERO: Self = Self(0);

    /// A moment `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `nanos` nanoseconds later.
    #[must_use]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// `nanos` nanoseconds earlier, at least [`Self::ZERO`].
    #[must_use]
    pub const fn minus(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Nanoseconds from `earlier` to this moment, 0 if `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_documented_ranges_are_accepted() {
        for n in 0..=u8::MAX {
            assert_eq!(Vrid::new(n).is_ok(), n != 0);
            assert_eq!(Priority::configured(n).is_ok(), (3..=254).contains(&n));
            assert_eq!(Priority::from_wire(n).get(), n);
        }
        for n in 0..=u16::MAX {
            assert_eq!(Centiseconds::new(n).is_ok(), (1..=4095).contains(&n));
        }
    }

    #[test]
    fn an_interval_is_a_whole_number_of_centiseconds() {
        let of = |ms| Centiseconds::try_from(Duration::from_millis(ms));
        assert_eq!(of(10).map(Centiseconds::get), Ok(1));
        assert_eq!(of(40_950).map(Centiseconds::get), Ok(4095));
        for wrong in [0, 5, 15, 40_960, 400_000_000_000] {
            assert!(of(wrong).is_err(), "{wrong} ms");
        }
        assert_eq!(Duration::from(Centiseconds(25)), Duration::from_millis(250));
        assert_eq!(Centiseconds(1).as_nanos(), 10_000_000);
    }

    #[test]
    fn serde_refuses_what_the_constructors_refuse() {
        assert!(serde_json::from_str::<Vrid>("0").is_err());
        assert!(serde_json::from_str::<Centiseconds>("4096").is_err());
        assert_eq!(serde_json::from_str::<Vrid>("51").ok(), Vrid::new(51).ok());
    }

    #[test]
    fn moments_saturate() {
        assert_eq!(MonoTime::ZERO.minus(1), MonoTime::ZERO);
        assert_eq!(MonoTime::from_nanos(u64::MAX).plus(1).as_nanos(), u64::MAX);
        assert_eq!(MonoTime::from_nanos(3).since(MonoTime::from_nanos(5)), 0);
    }
}
