//! What a run found: checks that held or did not, and figures.

use std::{collections::BTreeMap, fmt::Display};

use serde::{Deserialize, Serialize};

/// One statement that was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The statement.
    pub name: String,
    /// Whether it held.
    pub passed: bool,
    /// What was seen.
    pub detail: String,
}

/// The outcome of one run of a scenario; printed as one JSON object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// Which product ran in the nodes' place.
    pub node: String,
    /// Seed of everything random in the run.
    pub seed: u64,
    /// Whether all checks held.
    pub passed: bool,
    /// The checks in the order they were made.
    pub checks: Vec<Check>,
    /// Numbers by name; the unit is in the name.
    pub figures: BTreeMap<String, f64>,
    /// Where logs and captures were kept; only of runs that failed or were asked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Print each check as it is made.
    #[serde(skip)]
    aloud: bool,
}

impl Report {
    /// An empty report. With `aloud` each check and note is printed as it comes.
    pub fn new(scenario: &str, node: &str, seed: u64, aloud: bool) -> Self {
        Self {
            scenario: scenario.to_owned(),
            node: node.to_owned(),
            seed,
            passed: true,
            checks: Vec::new(),
            figures: BTreeMap::new(),
            kept: None,
            aloud,
        }
    }

    /// Records whether a statement held; gives that back.
    pub fn check(&mut self, name: impl Into<String>, passed: bool, detail: impl Display) -> bool {
        let check = Check {
            name: name.into(),
            passed,
            detail: detail.to_string(),
        };
        if self.aloud {
            println!(
                "{}  {}: {}",
                if passed { "ok  " } else { "FAIL" },
                check.name,
                check.detail
            );
        }
        self.passed &= passed;
        self.checks.push(check);
        passed
    }

    /// Records a figure; its unit belongs into the name. Rounded to a thousandth.
    pub fn figure(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        let value = (value * 1000.0).round() / 1000.0;
        if self.aloud {
            println!("      {name} = {value}");
        }
        self.figures.insert(name, value);
    }

    /// Records a count as a figure.
    #[expect(clippy::cast_precision_loss, reason = "counts of a run are far below 2^52")]
    pub fn count(&mut self, name: impl Into<String>, value: usize) {
        self.figure(name, value as f64);
    }

    /// Says what is going on, to people only.
    pub fn note(&self, text: impl Display) {
        if self.aloud {
            println!("      {text}");
        }
    }

    /// Records median, least and greatest of `values` as `NAME_median`, `NAME_min`, `NAME_max`.
    pub fn spread(&mut self, name: &str, values: &[f64]) {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        if let (Some(min), Some(max), Some(median)) = (sorted.first(), sorted.last(), median(&sorted)) {
            self.figure(format!("{name}_median"), median);
            self.figure(format!("{name}_min"), *min);
            self.figure(format!("{name}_max"), *max);
        }
    }
}

/// Median of values in ascending order.
pub fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    Some(f64::midpoint(
        *sorted.get(middle.checked_sub(1)?)?,
        *sorted.get(middle)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failed_check_fails_the_report() {
        let mut report = Report::new("x", "onearm", 1, false);
        report.check("a", true, "");
        assert!(report.passed);
        report.check("b", false, "seen");
        report.check("c", true, "");
        assert!(!report.passed);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_json_object_has_the_agreed_keys() {
        let mut report = Report::new("x", "onearm", 7, false);
        report.spread("outage_ms", &[3.0, 1.0]);
        let value = serde_json::to_value(&report).expect("serialisable");
        assert_eq!(value["figures"]["outage_ms_max"], 3.0);
        assert_eq!(value["figures"]["outage_ms_median"], 2.0);
        assert_eq!(
            (value["seed"].as_u64(), value["passed"].as_bool()),
            (Some(7), Some(true))
        );
        assert!(value["checks"].is_array() && value.get("kept").is_none());
    }
}
