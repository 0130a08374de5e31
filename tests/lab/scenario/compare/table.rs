//! The table: figures of each product and fault, and the goals.

use std::time::Duration;

use super::{Cost, Outcome, case::Case, product::Product};
use crate::{
    clock::{MS, Nanos, ms},
    report::{Report, median},
};

/// Adverts so far apart are what the goals are about.
const GOALS_AT: Duration = Duration::from_millis(10);

/// A stall of the machine above this disturbs a run: half an interval, 2 to 10 ms.
pub(super) fn tolerance(interval: Duration) -> Nanos {
    (crate::clock::nanos(interval) / 2).clamp(2 * MS, 10 * MS)
}

/// All runs of one fault of one product at one interval.
#[derive(Debug)]
pub(super) struct Row {
    product: Product,
    case: Case,
    interval: Duration,
    outcomes: Vec<Outcome>,
}

/// Which part of an outcome.
type Part = fn(&Outcome) -> &Cost;

impl Row {
    pub(super) fn new(product: Product, case: Case, interval: Duration) -> Self {
        Self {
            product,
            case,
            interval,
            outcomes: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Runs made.
    pub(super) fn made(&self) -> usize {
        self.outcomes.len()
    }

    /// Runs that were not disturbed.
    pub(super) fn clean(&self) -> usize {
        self.outcomes.iter().filter(|o| o.disturbed.is_none()).count()
    }

    /// The runs that count: the undisturbed ones, or all when every one was disturbed.
    fn counted(&self) -> Vec<&Outcome> {
        let clean: Vec<&Outcome> = self.outcomes.iter().filter(|o| o.disturbed.is_none()).collect();
        if clean.is_empty() {
            return self.outcomes.iter().collect();
        }
        clean
    }

    fn outages(&self, part: Part) -> Vec<f64> {
        let mut all: Vec<f64> = self.counted().into_iter().map(|o| ms(part(o).outage)).collect();
        all.sort_by(f64::total_cmp);
        all
    }

    fn most(&self, value: impl Fn(&Outcome) -> Option<usize>) -> Option<usize> {
        self.counted().into_iter().filter_map(value).max()
    }

    /// Puts all figures into the report.
    pub(super) fn record(&self, report: &mut Report) {
        let name = format!(
            "{}ms_{}_{}",
            self.interval.as_millis(),
            self.product.name(),
            self.case.name()
        );
        report.count(format!("{name}_runs_clean"), self.clean());
        report.count(format!("{name}_runs_disturbed"), self.made() - self.clean());
        let parts: [(&str, Part); 2] = [("", |o| &o.fault), ("_back", |o| &o.end)];
        for (suffix, part) in parts {
            let name = format!("{name}{suffix}");
            report.spread(&format!("{name}_outage_ms"), &self.outages(part));
            let lost: Vec<f64> = self.counted().into_iter().map(|o| count(part(o).lost)).collect();
            report.spread(&format!("{name}_lost"), &lost);
            if let Some(most) = self.most(|o| Some(part(o).two_by_frames)) {
                report.count(format!("{name}_two_owners_ms_by_frames_max"), most);
            }
            if let Some(most) = self.most(|o| part(o).two_by_leases) {
                report.count(format!("{name}_two_owners_ms_by_leases_max"), most);
            }
        }
    }

    /// Checks the goals this row has.
    pub(super) fn judge(&self, report: &mut Report) {
        if !matches!(self.product, Product::Onearm | Product::OnearmLinked) || self.interval != GOALS_AT {
            return;
        }
        let linked = self.product == Product::OnearmLinked;
        let name = format!("{}: {}", self.product.name(), self.case.words().0);
        let runs = format!(
            "{} clean runs, {} disturbed",
            self.clean(),
            self.made() - self.clean()
        );
        let spec = self.product.spec(self.interval);
        let silence = ms(spec.active_down(0).max(spec.active_down(1)));
        let bound = match self.case {
            Case::Cut | Case::Partition if linked => Some(10.0),
            Case::Cut | Case::Partition => Some(32.0),
            Case::KillHa => Some(5.0),
            Case::Kill => Some(silence),
            Case::KillMain | Case::Hang | Case::Stop | Case::SwitchOver => None,
        };
        if let (Some(bound), Some(middle)) = (bound, median(&self.outages(|o| &o.fault))) {
            report.check(
                format!("{name}: outage within {bound} ms in the median"),
                middle <= bound,
                format!("{middle:.1} ms, {runs}"),
            );
        }
        if matches!(self.case, Case::KillMain | Case::SwitchOver) {
            let lost = self.most(|o| Some(o.fault.lost)).unwrap_or(0);
            report.check(
                format!("{name}: no packet lost"),
                lost == 0,
                format!("{lost} at most, {runs}"),
            );
        }
        if matches!(self.case, Case::Partition | Case::SwitchOver) {
            let lost = self.most(|o| Some(o.end.lost)).unwrap_or(0);
            report.check(
                format!("{name}, {}: no packet lost", self.case.words().1),
                lost == 0,
                format!("{lost} at most, {runs}"),
            );
        }
        let both = |o: &Outcome| {
            let of = |cost: &Cost| cost.two_by_frames + cost.two_by_leases.unwrap_or(0);
            Some(of(&o.fault) + of(&o.end))
        };
        // Without a path nobody can know of the other.
        if linked || self.case != Case::Partition {
            let most = self.most(both).unwrap_or(0);
            report.check(
                format!("{name}: never two owners, by frames and by lease cells"),
                most == 0,
                format!("{most} ms at most, {runs}"),
            );
        }
    }
}

fn count(value: usize) -> f64 {
    u32::try_from(value).map_or(f64::INFINITY, f64::from)
}

/// One run in one line.
pub(super) fn line(outcome: &Outcome) -> String {
    let part = |cost: &Cost| {
        let leases = cost
            .two_by_leases
            .map_or_else(String::new, |ms| format!(" and {ms} by leases"));
        format!(
            "{:.1} ms, {} lost, new connections {:.0} ms, two owners {} ms{leases}",
            ms(cost.outage),
            cost.lost,
            ms(cost.connections),
            cost.two_by_frames
        )
    };
    let disturbed = outcome
        .disturbed
        .map_or_else(String::new, |why| format!(" (disturbed: {why})"));
    format!(
        "{}; back: {}{disturbed}",
        part(&outcome.fault),
        part(&outcome.end)
    )
}

/// The table for people, in Markdown.
pub(super) fn print(report: &Report, rows: &[Row]) {
    let mut intervals: Vec<Duration> = rows.iter().map(|row| row.interval).collect();
    intervals.dedup();
    for interval in intervals {
        report.note("");
        report.note(format!(
            "| adverts every {} ms: what happens to the Active | product | outage ms, median (min–max) | packets lost | new connections away ms | two owners ms, frames / leases | and back | outage ms | packets lost | new connections | two owners ms | clean runs (disturbed) |",
            interval.as_millis()
        ));
        report.note("|---|---|---|---|---|---|---|---|---|---|---|---|");
        for case in Case::ALL {
            for row in rows
                .iter()
                .filter(|row| row.case == case && row.interval == interval)
            {
                let cells = |part: Part| {
                    let outages = row.outages(part);
                    let lost: Vec<usize> = row.counted().into_iter().map(|o| part(o).lost).collect();
                    let leases = row
                        .most(|o| part(o).two_by_leases)
                        .map_or_else(|| "–".to_owned(), |ms| ms.to_string());
                    format!(
                        "{:.1} ({:.1}–{:.1}) | {}–{} | {} | {} / {leases}",
                        median(&outages).unwrap_or(f64::NAN),
                        outages.first().copied().unwrap_or(f64::NAN),
                        outages.last().copied().unwrap_or(f64::NAN),
                        lost.iter().min().unwrap_or(&0),
                        lost.iter().max().unwrap_or(&0),
                        row.most(|o| usize::try_from(part(o).connections / MS).ok())
                            .unwrap_or(0),
                        row.most(|o| Some(part(o).two_by_frames)).unwrap_or(0)
                    )
                };
                let (fault, end) = case.words();
                report.note(format!(
                    "| {fault} | {} | {} | {end} | {} | {} ({}) |",
                    row.product.name(),
                    cells(|o| &o.fault),
                    cells(|o| &o.end),
                    row.clean(),
                    row.made() - row.clean()
                ));
            }
        }
    }
}
