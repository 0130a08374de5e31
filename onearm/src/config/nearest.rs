//! What a misspelt word was meant to be.

/// The known word most like `word`, if one is near enough to be meant: a third of its letters wrong, at most.
pub(super) fn nearest(word: &str, known: &[&'static str]) -> Option<&'static str> {
    let most = word.chars().count().max(3) / 3;
    // A word much longer than any known one is near none; this keeps hostile files cheap.
    if word.len() > 64 {
        return None;
    }
    known
        .iter()
        .map(|k| (distance(word, k), *k))
        .filter(|(d, _)| *d <= most)
        .min()
        .map(|(_, k)| k)
}

/// Letters to insert, remove, replace or swap with their neighbour to get from `a` to `b` (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_another_word_is_not() {
        let known = ["priority", "peer", "name", "scheduler", "snat"];
        for (word, near) in [
            ("prioriy", Some("priority")),
            ("pirority", Some("priority")),
            ("Peer", Some("peer")),
            ("sheduler", Some("scheduler")),
            ("nat", Some("snat")),
            ("weight", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, &known), near, "{word}");
        }
    }
}
