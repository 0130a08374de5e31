use serde::{Deserialize, Serialize};

use crate::units::MonoTime;

/// How the last term as Active began, as it was carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermTimes {
    /// When it was decided: `at` of its [`Transition`](crate::election::Transition).
    pub began_at: MonoTime,
    /// When the lease cell was written first.
    pub lease_at: Option<MonoTime>,
    /// When the first announcement had left.
    pub first_announced_at: Option<MonoTime>,
    /// When as many had left as there are owned addresses: the first pass over them.
    pub all_announced_at: Option<MonoTime>,
    /// Announcements that have left.
    pub announced: u64,
}

impl TermTimes {
    pub(super) fn begin(at: MonoTime) -> Self {
        Self {
            began_at: at,
            ..Self::default()
        }
    }

    pub(super) fn leased(&mut self, at: MonoTime) {
        self.lease_at.get_or_insert(at);
    }

    /// One of `of` addresses was announced.
    pub(super) fn announced(&mut self, at: MonoTime, of: usize) {
        self.announced += 1;
        self.first_announced_at.get_or_insert(at);
        if self.announced >= of as u64 {
            self.all_announced_at.get_or_insert(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_first_is_kept_and_all_are_announced_when_each_was() {
        let at = MonoTime::from_nanos;
        let mut term = TermTimes::begin(at(1));
        term.leased(at(2));
        term.leased(at(3));
        for moment in 4..9 {
            term.announced(at(moment), 3);
        }
        let wanted = TermTimes {
            began_at: at(1),
            lease_at: Some(at(2)),
            first_announced_at: Some(at(4)),
            all_announced_at: Some(at(6)),
            announced: 5,
        };
        assert_eq!(term, wanted);
    }
}
