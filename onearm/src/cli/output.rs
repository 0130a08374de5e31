//! Printing: tables that fit 80 columns, numbers and times for people, JSON.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::exit::Failure;

/// Width of a table where the output is no terminal.
const WIDTH: u16 = 80;

/// Writes to standard output. A reader that has seen enough (`onearm flows | head`) is no failure.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// Writes a value as indented JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(io::Error::from)?;
    text.push('\n');
    print(&text)
}

/// Writes a failure with its causes to standard error.
pub(super) fn failure(failure: &Failure) {
    let mut text = format!("onearm: {failure}");
    let mut cause = failure.source();
    while let Some(inner) = cause {
        // Writing to a string never fails.
        let _ignored = write!(text, ": {inner}");
        cause = inner.source();
    }
    if matches!(
        failure,
        Failure::Client(crate::control::ClientError::Connect { .. })
    ) {
        text.push_str(
            "\nis it running (`systemctl status onearmd`), and may you use its socket (root, or its group)?",
        );
    }
    complain(&text);
}

/// Writes a line to standard error.
pub(super) fn complain(line: &str) {
    // With standard error gone there is nobody left to tell.
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// A table without lines. It is as wide as the terminal; elsewhere it fits 80 columns.
pub(super) fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    if !table.is_tty() || table.width().is_none() {
        table.force_no_tty().set_width(WIDTH);
    }
    table.set_header(heads.iter().map(|head| head.to_uppercase()));
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    table
}

/// A cell with a number, on the right.
pub(super) fn number(number: u64) -> Cell {
    Cell::new(grouped(number)).set_alignment(CellAlignment::Right)
}

/// Draws a table, each line without blanks at its end.
pub(super) fn draw(table: &Table) -> String {
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A paragraph of at most 80 columns: `first` stands before its first line, as many blanks before the others.
pub(super) fn paragraph(first: &str, words: &str) -> String {
    let indent = first.chars().count();
    let (mut text, mut column) = (first.to_owned(), indent);
    for (index, word) in words.split_whitespace().enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > usize::from(WIDTH) {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
    text
}

/// `1234567` as `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in bytes for people: `285 MB`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        10_000_000_000.. => format!("{} GB", bytes / 1_000_000_000),
    }
}

/// A time span for people, two units at most: `350 ms`, `4.2 s`, `3 m 20 s`, `2 d 4 h`.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1_000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1_000 / 100),
        60..3_600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} m", seconds / 3_600, seconds % 3_600 / 60),
        86_400.. => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A moment in UTC: `2026-01-31 23:59:59.120`.
pub(super) fn moment(unix_ms: u64) -> String {
    let time = std::time::UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    let text = time
        .map(|time| humantime::format_rfc3339_millis(time).to_string())
        .unwrap_or_default();
    text.replace('T', " ").trim_end_matches('Z').to_owned()
}
