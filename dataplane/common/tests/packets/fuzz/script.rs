//! What happened to a node, as text: a line `setup NAME v4|v6|both`, then a line an event. A failure is printed like this; put
//! into `tests/corpus/` it is run by every test from then on, however the generator changes.

use super::{changes, judge::Event, setups::Family};
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

pub fn print(setup: &str, family: Family, events: &[Event]) -> String {
    let mut text = format!("setup {setup} {}\n", family.name());
    for event in events {
        let line = match event {
            Event::Frame(ifindex, frame) => format!("frame {ifindex} {}", hex(frame)),
            Event::Ticks(ticks) => format!("ticks {ticks}"),
            Event::Lease(held) => format!("lease {held}"),
            Event::Server(index, flags) => format!("server {index} {flags}"),
            Event::Again(note, ifindex, frame) => format!("again {note} {ifindex} {}", hex(frame)),
            Event::Leaves(frame) => format!("leaves {}", hex(frame)),
            Event::Sweep => "sweep".to_owned(),
            Event::Noted => "noted".to_owned(),
            Event::Judged(n, believed) => format!("judged {n} {believed}"),
            Event::Change(name) => format!("change {name}"),
        };
        text += &line;
        text.push('\n');
    }
    text
}

/// A script; empty lines and lines that begin with `#` are not looked at.
pub fn parse(text: &str) -> Option<(String, Family, Vec<Event>)> {
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
            ["again", note, ifindex, bytes] => {
                Event::Again(note.parse().ok()?, ifindex.parse().ok()?, unhex(bytes)?)
            }
            ["leaves", bytes] => Event::Leaves(unhex(bytes)?),
            ["sweep"] => Event::Sweep,
            ["noted"] => Event::Noted,
            ["judged", n, believed] => Event::Judged(n.parse().ok()?, believed.parse().ok()?),
            ["change", name] => Event::Change(changes::CHANGES.iter().find(|(known, _)| *known == name)?.0),
            _ => return None,
        })
    };
    let events = lines.map(event).collect::<Option<_>>()?;
    Some((setup.to_owned(), Family::named(family)?, events))
}
