use std::collections::{HashMap, HashSet};
use std::ops::{Range, RangeInclusive};

use toml::de::{DeTable, DeValue};

use super::diagnostic::{Diagnostic, Severity};
use super::limits;
use super::nearest::nearest;
use super::source::{Parsed, Position, Source};

/// Keys of one kind of table.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    /// Keys of this build.
    pub(super) known: &'static [&'static str],
    /// Keys of the contract that are not built yet, each with the sentence that says so.
    pub(super) later: &'static [(&'static str, &'static str)],
}

/// A value in the document.
#[derive(Clone)]
pub(super) struct Field<'d> {
    pub(super) path: String,
    pub(super) span: Range<usize>,
    pub(super) value: &'d DeValue<'d>,
}

/// A table in the document whose keys have been judged.
pub(super) struct Table<'d> {
    path: String,
    span: Range<usize>,
    entries: &'d DeTable<'d>,
}

/// One walk over a document: reads what is good, notes what is not, and goes on.
pub(super) struct Walk<'s> {
    source: &'s Source,
    diagnostics: Vec<Diagnostic>,
    spans: HashMap<String, Range<usize>>,
}

/// Parses `source` and lets `read` walk over it. Where the syntax is broken the walk sees what could be saved; then it is
/// not told that keys are missing, and nothing more is said of a line that could not be parsed.
pub(super) fn walk<T>(
    source: Source,
    read: impl FnOnce(&mut Walk<'_>, Option<&Table<'_>>) -> T,
    keys: Keys,
) -> Parsed<T> {
    let (document, syntax) = if source.text().len() <= limits::FILE_BYTES_RECOVERED {
        DeTable::parse_recoverable(source.text())
    } else {
        match DeTable::parse(source.text()) {
            Ok(document) => (document, Vec::new()),
            Err(error) => (DeTable::parse_recoverable("").0, vec![error]),
        }
    };
    let mut walk = Walk {
        source: &source,
        diagnostics: Vec::new(),
        spans: HashMap::new(),
    };
    let root = DeValue::Table(document.into_inner());
    let field = Field {
        path: String::new(),
        span: 0..0,
        value: &root,
    };
    let empty = syntax.is_empty() && root.as_table().is_some_and(toml::map::Map::is_empty);
    let table = walk.table(&field, keys);
    let config = read(&mut walk, table.as_ref());
    let Walk {
        mut diagnostics,
        spans,
        ..
    } = walk;
    let mut broken: Vec<Diagnostic> = Vec::new();
    let mut silent: HashSet<u32> = HashSet::new();
    for error in &syntax {
        let at = error.span().map_or(0, |span| span.start);
        let Position { line, column } = source.position(at);
        if !silent.insert(line) {
            continue;
        }
        let message = if source.line(line).trim_end().ends_with('=') {
            "the value is missing"
        } else {
            error.message()
        };
        broken.push(Diagnostic {
            severity: Severity::Error,
            rule: "syntax",
            file: source.name().to_owned(),
            line,
            column,
            field: String::new(),
            value: None,
            message: message.to_owned(),
            remedy: "TOML: key = value, text in \"quotes\", lists in [brackets], one line each".to_owned(),
        });
    }
    if empty {
        diagnostics.clear();
        diagnostics.push(Diagnostic {
            severity: Severity::Error,
            rule: "empty",
            file: source.name().to_owned(),
            line: 0,
            column: 0,
            field: String::new(),
            value: None,
            message: "the file says nothing".to_owned(),
            remedy: "start from the examples in etc/examples".to_owned(),
        });
    }
    if !broken.is_empty() {
        // What stands under a broken header belongs to a table nobody knows.
        let header = |line: u32| source.line(line).trim_start().starts_with('[');
        for line in broken.iter().map(|d| d.line).filter(|line| header(*line)) {
            silent.extend((line + 1..=source.lines()).take_while(|line| !header(*line)));
        }
        diagnostics.retain(|d| d.rule != "missing-key" && !silent.contains(&d.line));
    }
    broken.append(&mut diagnostics);
    Parsed {
        config,
        diagnostics: broken,
        spans,
        source,
    }
}

impl Walk<'_> {
    /// Notes an error about a value.
    pub(super) fn error(
        &mut self,
        field: &Field<'_>,
        rule: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let value = match field.value {
            DeValue::Table(_) | DeValue::Array(_) => None,
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => Some(self.source.excerpt(field.span.clone())),
        };
        self.error_at(
            &field.path,
            field.span.start,
            value,
            rule,
            message.into(),
            remedy.into(),
        );
    }

    fn error_at(
        &mut self,
        path: &str,
        offset: usize,
        value: Option<String>,
        rule: &'static str,
        message: String,
        remedy: String,
    ) {
        let Position { line, column } = self.source.position(offset);
        self.diagnostics.push(Diagnostic {
            severity: Severity::Error,
            rule,
            file: self.source.name().to_owned(),
            line,
            column,
            field: path.to_owned(),
            value,
            message,
            remedy,
        });
    }

    /// The field as a table, its keys judged.
    pub(super) fn table<'d>(&mut self, field: &Field<'d>, keys: Keys) -> Option<Table<'d>> {
        let Some(entries) = field.value.as_table() else {
            self.wrong_type(
                field,
                "a table",
                "write { key = value, … } or a [table] of its own",
            );
            return None;
        };
        for (key, value) in entries {
            let name: &str = key.get_ref();
            let path = join(&field.path, name);
            let start = key.span().start;
            if keys.known.contains(&name) {
                continue;
            }
            if let Some((_, sentence)) = keys.later.iter().find(|(later, _)| *later == name) {
                let found = Field {
                    path,
                    span: value.span(),
                    value: value.get_ref(),
                };
                self.error(&found, "not-in-this-build", *sentence, "remove the key");
                continue;
            }
            let remedy = match nearest(name, keys.known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("keys here: {}", keys.known.join(", ")),
            };
            self.error_at(
                &path,
                start,
                None,
                "unknown-key",
                "unknown key".to_owned(),
                remedy,
            );
        }
        Some(Table {
            path: field.path.clone(),
            span: field.span.clone(),
            entries,
        })
    }

    /// The field `key`, if the file has it.
    pub(super) fn optional<'d>(&mut self, table: &Table<'d>, key: &str) -> Option<Field<'d>> {
        let value = table.entries.get(key)?;
        let field = Field {
            path: join(&table.path, key),
            span: value.span(),
            value: value.get_ref(),
        };
        self.spans.insert(field.path.clone(), field.span.clone());
        Some(field)
    }

    /// What `read` makes of the field `key`; missing or bad gives `None`, and only bad is an error.
    pub(super) fn may<'d, T>(
        &mut self,
        table: &Table<'d>,
        key: &str,
        read: impl FnOnce(&mut Self, &Field<'d>) -> Option<T>,
    ) -> Option<T> {
        let field = self.optional(table, key)?;
        read(self, &field)
    }

    /// As [`Self::may`], with a default for both cases.
    pub(super) fn or<'d, T>(
        &mut self,
        table: &Table<'d>,
        key: &str,
        default: T,
        read: impl FnOnce(&mut Self, &Field<'d>) -> Option<T>,
    ) -> T {
        self.may(table, key, read).unwrap_or(default)
    }

    /// As [`Self::may`]; missing is an error too, with `remedy`.
    pub(super) fn need<'d, T>(
        &mut self,
        table: &Table<'d>,
        key: &str,
        remedy: &str,
        read: impl FnOnce(&mut Self, &Field<'d>) -> Option<T>,
    ) -> Option<T> {
        if let Some(field) = self.optional(table, key) {
            return read(self, &field);
        }
        let path = join(&table.path, key);
        self.error_at(
            &path,
            table.span.start,
            None,
            "missing-key",
            "missing".to_owned(),
            remedy.to_owned(),
        );
        None
    }

    /// Reads each element of a list of at most `most`; bad ones are left out. The numbers are their places in the file.
    pub(super) fn each<'d, T>(
        &mut self,
        field: &Field<'d>,
        most: usize,
        mut read: impl FnMut(&mut Self, &Field<'d>) -> Option<T>,
    ) -> Option<Vec<(usize, T)>> {
        let Some(list) = field.value.as_array() else {
            self.wrong_type(field, "a list", "write [a, b, …]");
            return None;
        };
        if list.len() > most {
            let message = format!("{} elements, the limit is {most}", list.len());
            self.error(field, "limit", message, "remove some");
        }
        let mut elements = Vec::new();
        for (place, value) in list.iter().take(most).enumerate() {
            let path = format!("{}[{place}]", field.path);
            let element = Field {
                path,
                span: value.span(),
                value: value.get_ref(),
            };
            self.spans.insert(element.path.clone(), element.span.clone());
            elements.extend(read(self, &element).map(|element| (place, element)));
        }
        Some(elements)
    }

    /// As [`Self::each`], without the places.
    pub(super) fn list<'d, T>(
        &mut self,
        field: &Field<'d>,
        most: usize,
        read: impl FnMut(&mut Self, &Field<'d>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let elements = self.each(field, most, read)?;
        Some(elements.into_iter().map(|(_, element)| element).collect())
    }

    /// A text.
    pub(super) fn text<'d>(&mut self, field: &Field<'d>) -> Option<&'d str> {
        let text = field.value.as_str();
        if text.is_none() {
            self.wrong_type(field, "a text", "write it in \"double quotes\"");
        }
        text
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self, field: &Field<'_>) -> Option<bool> {
        let value = field.value.as_bool();
        if value.is_none() {
            self.wrong_type(field, "true or false", "write true or false, without quotes");
        }
        value
    }

    /// A number in a range.
    pub(super) fn integer(&mut self, field: &Field<'_>, range: RangeInclusive<u64>) -> Option<u64> {
        let Some(digits) = field.value.as_integer() else {
            self.wrong_type(field, "a whole number", "write digits without quotes");
            return None;
        };
        // A number too long for 128 bits is out of any range.
        let number = i128::from_str_radix(digits.as_str(), digits.radix()).ok();
        let number = number
            .and_then(|number| u64::try_from(number).ok())
            .filter(|number| range.contains(number));
        if number.is_none() {
            let remedy = if range.start() == range.end() {
                format!("write {}", range.start())
            } else {
                format!("write a number from {} to {}", range.start(), range.end())
            };
            self.error(field, "range", "out of range", remedy);
        }
        number
    }

    /// One of several words; `later` are words of the contract that are not built yet, each with its sentence.
    pub(super) fn choice<T: Copy>(
        &mut self,
        field: &Field<'_>,
        words: &[(&'static str, T)],
        later: &[(&str, &'static str)],
    ) -> Option<T> {
        let known: Vec<&'static str> = words.iter().map(|(word, _)| *word).collect();
        let all = known
            .iter()
            .map(|word| format!("\"{word}\""))
            .collect::<Vec<_>>()
            .join(" or ");
        let Some(text) = field.value.as_str() else {
            self.wrong_type(field, "a text", &format!("write {all}"));
            return None;
        };
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        if let Some((_, sentence)) = later.iter().find(|(word, _)| *word == text) {
            self.error(field, "not-in-this-build", *sentence, format!("write {all}"));
        } else {
            let remedy = match nearest(text, &known) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("write {all}"),
            };
            self.error(field, "unknown-word", "unknown word", remedy);
        }
        None
    }

    /// Notes that a value has the wrong type.
    pub(super) fn wrong_type(&mut self, field: &Field<'_>, expected: &str, remedy: &str) {
        let found = match field.value {
            DeValue::String(_) => "a text",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number with a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.error(
            field,
            "type",
            format!("expected {expected}, found {found}"),
            remedy,
        );
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}
