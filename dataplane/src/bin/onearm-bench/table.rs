//! The report.

/// One program and what its packets cost.
pub(crate) struct Row {
    /// Stable name for JSON.
    pub(crate) key: &'static str,
    title: &'static str,
    /// Which row it is compared with besides `parse`.
    rival: &'static str,
    /// The wrapper itself.
    pub(crate) is_wrapper: bool,
    /// ns per packet, a round each.
    pub(crate) samples: Vec<f64>,
}

impl Row {
    /// The rows in the order of measurement.
    pub(crate) fn all() -> Vec<Self> {
        [
            ("wrapper", "(wrapper, subtracted below)", ""),
            ("parse", "parse + transmit", ""),
            ("lru", "parse + LRU hash look-up + transmit", "lru"),
            ("both_nat_request", "both-nat, client's packet", "lru"),
            ("both_nat_reply", "both-nat, server's packet", "lru"),
            ("dnat_request", "dnat, client's packet", "lru"),
            ("dnat_reply", "dnat, server's packet", "lru"),
            ("dsr_request", "dsr, client's packet", "lru"),
            ("l3_dsr_request", "l3-dsr, client's packet", "lru"),
            ("lru_new", "parse + LRU hash insert + transmit", "lru_new"),
            ("both_nat_new", "both-nat, new flow", "lru_new"),
            ("dnat_new", "dnat, new flow", "lru_new"),
            ("dsr_new", "dsr, new flow", "lru_new"),
            ("l3_dsr_new", "l3-dsr, new flow", "lru_new"),
        ]
        .into_iter()
        .map(|(key, title, rival)| Self {
            key,
            title,
            rival,
            is_wrapper: rival.is_empty() && key == "wrapper",
            samples: Vec::new(),
        })
        .collect()
    }
}

/// Median; 0 of nothing.
pub(crate) fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    let half = samples.len() / 2;
    match samples.len() {
        0 => 0.0,
        n if n % 2 == 1 => samples[half],
        _ => f64::midpoint(samples[half - 1], samples[half]),
    }
}

fn medians(rows: &[Row]) -> Vec<(&Row, f64)> {
    rows.iter()
        .map(|row| (row, median(&mut row.samples.clone())))
        .collect()
}

fn ratio(medians: &[(&Row, f64)], value: f64, to: &str) -> Option<f64> {
    let (_, base) = medians.iter().find(|(row, _)| row.key == to)?;
    (*base > 0.0).then(|| value / base)
}

/// For people.
pub(crate) fn text(results: &[(u32, Vec<Row>)]) -> String {
    let mut lines = Vec::new();
    for (flows, rows) in results {
        let medians = medians(rows);
        lines.push(format!("{flows} flows at random, ns per packet"));
        for (row, value) in &medians {
            let against =
                ratio(&medians, *value, row.rival).map_or(String::new(), |r| format!("   {r:.2} x LRU"));
            lines.push(format!("  {:<38}{value:>8.0}{against}", row.title));
        }
    }
    lines.join("\n")
}

/// For programs: `{"rounds": R, "runs": [{"flows": N, "ns": {…}, "ratio_to_lru": {…}}]}`.
pub(crate) fn json(results: &[(u32, Vec<Row>)], rounds: usize) -> String {
    let object = |pairs: Vec<(&str, f64)>| {
        let fields: Vec<String> = pairs.iter().map(|(k, v)| format!("\"{k}\": {v:.3}")).collect();
        format!("{{{}}}", fields.join(", "))
    };
    let runs: Vec<String> = results
        .iter()
        .map(|(flows, rows)| {
            let medians = medians(rows);
            let ns = medians.iter().map(|(row, value)| (row.key, *value)).collect();
            let ratios = medians
                .iter()
                .filter_map(|(row, value)| Some((row.key, ratio(&medians, *value, row.rival)?)))
                .collect();
            format!(
                "{{\"flows\": {flows}, \"ns\": {}, \"ratio_to_lru\": {}}}",
                object(ns),
                object(ratios)
            )
        })
        .collect();
    format!("{{\"rounds\": {rounds}, \"runs\": [{}]}}", runs.join(", "))
}
