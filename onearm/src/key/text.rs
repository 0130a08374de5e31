//! The text of a key file.
//!
//! ```text
//! # comment
//! onearm-key 1                    format
//! pair 32 hexadecimal digits      the pair's id
//! key 1 64 hexadecimal digits     number and secret; during a rotation there are two
//! ```

use std::fmt::Write as _;

use onearm_ha::auth::key::{KeyError, MAX_KEYS};
use onearm_ha::auth::{Key, KeyId, PairKeys};
use zeroize::{Zeroize as _, Zeroizing};

use crate::config::{Diagnostic, Severity};

const FORMAT: &str = "onearm-key";
const VERSION: &str = "1";
const HEAD: &str = "# The key of a onearm pair, the same file on both nodes. Whoever reads it can move the pair's addresses.\n\
    # `onearm key show` prints fingerprints to compare, `onearm key rotate` changes it without a gap.\n";
const WHOLE: &str =
    "copy the file again from the other node, or make a new one with `onearm key new` for both";

/// Reads a key file named `name`. No finding ever quotes the file: it is full of secrets.
///
/// # Errors
/// Everything that is wrong, in the order of lines.
pub fn parse(name: &str, text: &[u8]) -> Result<PairKeys, Vec<Diagnostic>> {
    let mut reading = Reading {
        name,
        findings: Vec::new(),
        has_format: false,
        pair: None,
        keys: Vec::new(),
    };
    for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
        match std::str::from_utf8(line) {
            Ok(line) => reading.line(number, line.trim_end()),
            Err(_) => reading.find(number, 1, "", "encoding", "not text".to_owned(), WHOLE),
        }
        if reading.is_hopeless() {
            break;
        }
    }
    reading.end()
}

struct Reading<'n> {
    name: &'n str,
    findings: Vec<Diagnostic>,
    has_format: bool,
    pair: Option<[u8; 16]>,
    keys: Vec<(u32, Key)>,
}

impl Reading<'_> {
    fn find(
        &mut self,
        line: u32,
        column: u32,
        field: impl Into<String>,
        rule: &'static str,
        message: String,
        remedy: &str,
    ) {
        self.findings.push(Diagnostic {
            severity: Severity::Error,
            rule,
            file: self.name.to_owned(),
            line,
            column,
            field: field.into(),
            value: None,
            message,
            remedy: remedy.to_owned(),
        });
    }

    /// Another format, or no key file at all: nothing more is to be learnt from it.
    fn is_hopeless(&self) -> bool {
        !self.has_format && !self.findings.is_empty()
    }

    fn line(&mut self, number: u32, line: &str) {
        let mut words = words(line);
        let Some((column, first)) = words.next().filter(|(_, word)| !word.starts_with('#')) else {
            return;
        };
        let known = known(first);
        if !self.has_format {
            self.format(number, column, first, words.next());
        } else if first == "pair" {
            self.pair(number, column, words.next());
        } else if first == "key" {
            let (id, secret) = (words.next(), words.next());
            self.key(number, column, id, secret);
        } else {
            let remedy = "a line begins with pair, key or #";
            self.find(
                number,
                column,
                "",
                "unknown-key",
                "unknown line".to_owned(),
                remedy,
            );
        }
        if let Some((column, _)) = words.next().filter(|_| !known.is_empty() && self.has_format) {
            self.find(
                number,
                column,
                known,
                "syntax",
                "too many words".to_owned(),
                WHOLE,
            );
        }
    }

    fn format(&mut self, number: u32, column: u32, first: &str, version: Option<(u32, &str)>) {
        let remedy = "its first line is `onearm-key 1`; is it the right file?";
        match version {
            _ if first != FORMAT => {
                let message = "not a key file of onearm".to_owned();
                self.find(number, column, "", "format", message, remedy);
            }
            Some((_, VERSION)) => self.has_format = true,
            Some((column, other)) if other.parse::<u32>().is_ok() => {
                let message = format!("format {other} is of another release than this one");
                let remedy = "install the same release on both nodes";
                self.find(number, column, FORMAT, "format", message, remedy);
            }
            Some((column, _)) => {
                self.find(
                    number,
                    column,
                    FORMAT,
                    "format",
                    "not a format".to_owned(),
                    remedy,
                );
            }
            None => self.find(number, column, FORMAT, "format", "missing".to_owned(), remedy),
        }
    }

    fn pair(&mut self, number: u32, column: u32, id: Option<(u32, &str)>) {
        if self.pair.is_some() {
            let message = "written twice".to_owned();
            self.find(number, column, "pair", "duplicate", message, "a pair has one id");
        }
        let at = id.map_or(column, |(column, _)| column);
        match id.map(|(_, digits)| hexadecimal(digits)) {
            Some(Ok(id)) => self.pair = Some(id),
            Some(Err(wrong)) => self.find(number, at, "pair", "key", wrong.to_owned(), WHOLE),
            None => self.find(number, at, "pair", "missing-key", "missing".to_owned(), WHOLE),
        }
    }

    fn key(&mut self, number: u32, column: u32, id: Option<(u32, &str)>, secret: Option<(u32, &str)>) {
        let Some((id_column, id)) = id else {
            self.find(number, column, "key", "missing-key", "missing".to_owned(), WHOLE);
            return;
        };
        let known = id.parse::<u16>().ok().filter(|id| *id > 0);
        let field = known.map_or_else(|| "key".to_owned(), |id| format!("key {id}"));
        if known.is_none() {
            let message = "its number is not 1 to 65535".to_owned();
            self.find(number, id_column, &*field, "range", message, WHOLE);
        }
        match secret.map(|(column, digits)| (column, hexadecimal(digits))) {
            Some((_, Ok(mut secret))) => {
                self.keys.extend(known.map(|id| {
                    let id = KeyId(id);
                    (number, Key { id, secret })
                }));
                secret.zeroize();
            }
            Some((column, Err(wrong))) => self.find(number, column, field, "key", wrong.to_owned(), WHOLE),
            None => {
                let message = "its secret is missing".to_owned();
                self.find(number, id_column, field, "missing-key", message, WHOLE);
            }
        }
    }

    fn end(mut self) -> Result<PairKeys, Vec<Diagnostic>> {
        if self.is_hopeless() {
            return Err(self.findings);
        }
        let told = |findings: &[Diagnostic], word| findings.iter().any(|found| found.field.starts_with(word));
        if !self.has_format {
            let message = "the file says nothing".to_owned();
            self.find(0, 0, "", "empty", message, WHOLE);
            return Err(self.findings);
        }
        if self.pair.is_none() && !told(&self.findings, "pair") {
            self.find(0, 0, "pair", "missing-key", "missing".to_owned(), WHOLE);
        }
        let lines: Vec<(u32, KeyId)> = self.keys.iter().map(|(line, key)| (*line, key.id)).collect();
        let keys = std::mem::take(&mut self.keys).into_iter().map(|(_, key)| key);
        let made = PairKeys::new(self.pair.unwrap_or_default(), keys.collect());
        match made {
            Ok(keys) if self.findings.is_empty() => return Ok(keys),
            Ok(_) => {}
            // What is missing because it could not be read is told already.
            Err(KeyError::None) if told(&self.findings, "key") => {}
            Err(error @ KeyError::Twice(twice)) => {
                let line = lines
                    .iter()
                    .rfind(|(_, id)| *id == twice)
                    .map_or(0, |(line, _)| *line);
                let column = u32::from(line > 0);
                self.find(
                    line,
                    column,
                    format!("key {}", twice.0),
                    "duplicate",
                    error.to_string(),
                    WHOLE,
                );
            }
            Err(error @ KeyError::TooMany(_)) => {
                let line = lines.get(MAX_KEYS).map_or(0, |(line, _)| *line);
                let column = u32::from(line > 0);
                let remedy = "remove the oldest on both nodes, if no node uses them any more";
                self.find(line, column, "key", "limit", error.to_string(), remedy);
            }
            Err(error) => self.find(0, 0, "key", "missing-key", error.to_string(), WHOLE),
        }
        self.findings.sort_by_key(|found| (found.line, found.column));
        Err(self.findings)
    }
}

/// A line is named by a word of the format only: anything else could be a secret in the wrong place.
fn known(first: &str) -> &'static str {
    match first {
        "pair" => "pair",
        "key" => "key",
        FORMAT => FORMAT,
        _ => "",
    }
}

/// The words of a line with their columns, from 1.
fn words(line: &str) -> impl Iterator<Item = (u32, &str)> {
    let mut from = 0;
    line.split_whitespace().map(move |word| {
        let at = line[from..].find(word).map_or(from, |at| from + at);
        from = at + word.len();
        let column = line[..at].chars().count() + 1;
        (u32::try_from(column).unwrap_or(u32::MAX), word)
    })
}

fn hexadecimal<const N: usize>(digits: &str) -> Result<[u8; N], &'static str> {
    let bytes = digits.as_bytes();
    if !bytes.iter().all(u8::is_ascii_hexdigit) {
        return Err("not hexadecimal");
    }
    if bytes.len() != 2 * N {
        return Err(if N == 32 {
            "not 64 hexadecimal digits"
        } else {
            "not 32 hexadecimal digits"
        });
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    };
    let mut out = [0; N];
    for (byte, two) in out.iter_mut().zip(bytes.chunks(2)) {
        *byte = digit(two[0]) << 4 | digit(two[1]);
    }
    Ok(out)
}

/// The text of a key file.
pub fn emit(keys: &PairKeys) -> Zeroizing<String> {
    // Never made longer: a text that is moved leaves a copy behind.
    let mut text = Zeroizing::new(String::with_capacity(HEAD.len() + 64 + 80 * (1 + MAX_KEYS)));
    text.push_str(HEAD);
    // Writing to a string never fails.
    let _ignored = writeln!(text, "{FORMAT} {VERSION}");
    text.push_str("pair ");
    push_hexadecimal(&mut text, keys.pair());
    for key in keys.keys() {
        let _ignored = write!(text, "\nkey {} ", key.id.0);
        push_hexadecimal(&mut text, &key.secret);
    }
    text.push('\n');
    text
}

fn push_hexadecimal(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string never fails.
        let _ignored = write!(text, "{byte:02x}");
    }
}
