use std::collections::HashMap;
use std::ops::Range;

use super::diagnostic::{Diagnostic, Severity};

/// Longest piece of a value shown in a diagnostic, in characters.
const VALUE_CHARS: usize = 60;

/// Line and column, both from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// The text of a file and what it is called.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: String,
    line_starts: Vec<usize>,
}

impl Source {
    /// A file named `name` that reads `text`.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        Self {
            name: name.into(),
            text,
            line_starts,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where byte `offset` is; the end of the text for any beyond.
    pub fn position(&self, offset: usize) -> Position {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.line_starts.partition_point(|start| *start <= offset);
        let column = self.text[self.line_starts[line - 1]..offset].chars().count() + 1;
        let small = |n| u32::try_from(n).unwrap_or(u32::MAX);
        Position {
            line: small(line),
            column: small(column),
        }
    }

    /// Number of lines, at least 1.
    pub fn lines(&self) -> u32 {
        u32::try_from(self.line_starts.len()).unwrap_or(u32::MAX)
    }

    /// Line `number` from 1, without its end; empty for any beyond.
    pub fn line(&self, number: u32) -> &str {
        let start = (number as usize)
            .checked_sub(1)
            .and_then(|index| self.line_starts.get(index));
        start
            .and_then(|start| self.text[*start..].lines().next())
            .unwrap_or_default()
    }

    /// The text of a span on one line, shortened.
    pub fn excerpt(&self, span: Range<usize>) -> String {
        let start = self.text.floor_char_boundary(span.start);
        let end = self.text.floor_char_boundary(span.end).max(start);
        let mut words = String::new();
        for c in self.text[start..end].chars() {
            if words.chars().count() == VALUE_CHARS {
                words.push('…');
                break;
            }
            words.push(if c.is_control() { ' ' } else { c });
        }
        words
    }
}

/// What came out of a file: the configuration as far as it could be read, and everything that is wrong with it.
///
/// With an error in `diagnostics` the configuration is a *draft*: pieces that could not be read are left out or have their
/// default. It is then good for finding more errors, and for nothing else.
#[derive(Clone, Debug)]
pub struct Parsed<T> {
    /// The configuration or its draft.
    pub config: T,
    /// The file.
    pub source: Source,
    /// Errors and warnings so far.
    pub diagnostics: Vec<Diagnostic>,
    pub(super) spans: HashMap<String, Range<usize>>,
}

impl<T> Parsed<T> {
    pub(super) fn unread(draft: T, error: Diagnostic) -> Self {
        let source = Source::new(error.file.clone(), "");
        Self {
            config: draft,
            source,
            diagnostics: vec![error],
            spans: HashMap::new(),
        }
    }

    /// Whether there is an error among the findings.
    pub fn is_draft(&self) -> bool {
        self.diagnostics.iter().any(|d| d.severity == Severity::Error)
    }

    /// Whether the file itself says something about the field.
    pub fn says(&self, field: &str) -> bool {
        self.spans.contains_key(field)
    }

    /// A finding about `field`; if the file does not write it, the position is that of the table it would stand in.
    pub fn find(
        &mut self,
        severity: Severity,
        rule: &'static str,
        field: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let mut known = field;
        let span = loop {
            if let Some(span) = self.spans.get(known) {
                break span.clone();
            }
            match known.rfind(['.', '[']) {
                Some(end) => known = &known[..end],
                None => break 0..0,
            }
        };
        let Position { line, column } = self.source.position(span.start);
        let excerpt = self.source.excerpt(span);
        let value = (known == field && !excerpt.starts_with(['[', '{'])).then_some(excerpt);
        self.diagnostics.push(Diagnostic {
            severity,
            rule,
            file: self.source.name().to_owned(),
            line,
            column,
            field: field.to_owned(),
            value,
            message: message.into(),
            remedy: remedy.into(),
        });
    }
}
