//! What happened to a node, as text: a line `setup NAME v4|v6`, then a line an event. A failure is printed like this; put
//! into `tests/corpus/` it is run by every test from then on, however the generator changes.

use super::judge::Event;
use std::fmt::Write;

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string grows");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

pub fn print(setup: &str, v6: bool, events: &[Event]) -> String {
    let mut text = format!("setup {setup} {}\n", if v6 { "v6" } else { "v4" });
    for event in events {
        let line = match event {
            Event::Frame(ifindex, frame) => format!("frame {ifindex} {}", hex(frame)),
            Event::Ticks(ticks) => format!("ticks {ticks}"),
            Event::Lease(held) => format!("lease {held}"),
            Event::Server(index, flags) => format!("server {index} {flags}"),
        };
        text += &line;
        text.push('\n');
    }
    text
}

/// A script; empty lines and lines that begin with `#` are not looked at.
pub fn parse(text: &str) -> Option<(String, bool, Vec<Event>)> {
    let mut lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let ["setup", setup, family] = lines.next()?.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let event = |line: &str| {
        Some(match line.split(' ').collect::<Vec<_>>()[..] {
            ["frame", ifindex, bytes] => Event::Frame(ifindex.parse().ok()?, unhex(bytes)?),
            ["ticks", ticks] => Event::Ticks(ticks.parse().ok()?),
            ["lease", held] => Event::Lease(held.parse().ok()?),
            ["server", index, flags] => Event::Server(index.parse().ok()?, flags.parse().ok()?),
            _ => return None,
        })
    };
    let events = lines.map(event).collect::<Option<_>>()?;
    Some((setup.to_owned(), family == "v6", events))
}
