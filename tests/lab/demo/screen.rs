//! Output for people: lines that stay, and below them, on a terminal, a panel that is drawn anew in place.

use std::io::{IsTerminal as _, Write as _};

use crate::clock::{self, MS, Nanos};

/// Columns of the narrowest terminal.
const COLUMNS: usize = 80;
/// Without a terminal the panel is shortened to one line this often.
const PLAIN_PACE: Nanos = 500 * MS;
/// On a terminal it is drawn this often.
const LIVE_PACE: Nanos = 100 * MS;

/// Where the demonstration is shown.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: bool,
    drawn: usize,
    next_plain: Nanos,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            drawn: 0,
            next_plain: 0,
        }
    }

    /// How often the panel is worth drawing, in ns.
    pub(super) fn pace(&self) -> Nanos {
        if self.terminal { LIVE_PACE } else { PLAIN_PACE / 5 }
    }

    /// A line that stays.
    pub(super) fn say(&mut self, line: impl Into<String>) {
        self.clear();
        println!("{}", line.into());
    }

    /// Takes the panel away.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            // Up to its first line, then everything below is erased.
            print!("\x1b[{}A\x1b[J", self.drawn);
            self.drawn = 0;
            flush();
        }
    }

    /// Draws the panel; without a terminal one plain line now and then.
    pub(super) fn panel(&mut self, lines: &[String]) {
        if !self.terminal {
            let now = clock::now();
            if now >= self.next_plain {
                self.next_plain = now + PLAIN_PACE;
                println!("{}", plain(lines));
                flush();
            }
            return;
        }
        self.clear();
        for line in lines {
            println!("{}", cut(line));
        }
        self.drawn = lines.len();
        flush();
    }
}

/// Pushes what was printed out; a closed pipe shows in the next line.
fn flush() {
    std::io::stdout().flush().ok();
}

fn cut(line: &str) -> String {
    line.chars().take(COLUMNS - 1).collect()
}

/// The panel's heading and the outside client's line, as one.
fn plain(lines: &[String]) -> String {
    let head = lines
        .first()
        .map_or("", |l| l.split("owner: ").nth(1).unwrap_or(l));
    let outside = lines.get(3).map_or("", |l| l.split("  ").last().unwrap_or(l));
    cut(&format!(
        "  owner {head}; outside client: last answer {}",
        outside.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_to_the_narrowest_terminal() {
        assert_eq!(cut(&"é".repeat(200)).chars().count(), 79);
        assert_eq!(cut("short"), "short");
    }
}
