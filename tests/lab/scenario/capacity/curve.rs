//! Curves of counts over time, and how far one lags behind another.

use crate::clock::Nanos;

/// When how many there were; both ascend.
pub(super) type Curve = Vec<(Nanos, u64)>;

/// Samples of a lag.
const SAMPLES: u64 = 5_000;

/// How long after each of up to 5,000 flows was `made` it was `held`, ascending, ns. Flows that were never held are left out.
pub(super) fn lags(made: &Curve, held: &Curve, count: u64) -> Vec<Nanos> {
    let first = |curve: &Curve, nth: u64| {
        let at = curve.partition_point(|(_, there)| *there < nth);
        curve.get(at).map(|(when, _)| *when)
    };
    let step = usize::try_from(count / SAMPLES).unwrap_or(1).max(1);
    let mut all: Vec<Nanos> = (1..=count)
        .step_by(step)
        .filter_map(|nth| Some(first(held, nth)?.saturating_sub(first(made, nth)?)))
        .collect();
    all.sort_unstable();
    all
}

/// The lag that so many thousandths stay within, ns; 0 if there is none.
pub(super) fn quantile(lags: &[Nanos], thousandths: usize) -> Nanos {
    let at = (lags.len() * thousandths / 1_000).min(lags.len().saturating_sub(1));
    lags.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_lags_by_the_time_between_the_first_counts_that_include_it() {
        let made = vec![(10, 2), (20, 4)];
        let held = vec![(12, 1), (15, 2), (40, 4)];
        assert_eq!(lags(&made, &held, 4), [2, 5, 20, 20]);
    }

    #[test]
    fn flows_that_were_never_held_have_no_lag() {
        assert_eq!(lags(&vec![(10, 4)], &vec![(11, 3)], 4), [1, 1, 1]);
        assert_eq!(quantile(&[], 990), 0);
    }

    #[test]
    fn quantiles_are_of_the_sorted_lags() {
        assert_eq!(quantile(&[1, 2, 3, 4], 500), 3);
        assert_eq!(quantile(&[1, 2, 3, 4], 1_000), 4);
    }
}
