use std::fmt;

use serde::Serialize;

/// Whether a finding stops the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It runs, but most likely not as meant.
    Warning,
    /// It is refused.
    Error,
}

/// One thing that is wrong with a file.
///
/// ```text
/// pair.toml:12:7: error: service[0].vip = "10.0.0.300": not an IPv4 address
///     write four numbers from 0 to 255, for example "192.168.100.100"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// Fixed name of the rule, for tests and tools: `syntax`, `unknown-key`, `duplicate-service`…
    pub rule: &'static str,
    /// The file as it was named.
    pub file: String,
    /// Line from 1; 0 = the file as a whole.
    pub line: u32,
    /// Column in characters from 1; 0 = the file as a whole.
    pub column: u32,
    /// The field, list elements counted from 0: `service[0].server[2].weight`; empty = the file as a whole.
    pub field: String,
    /// The value as it is written there, shortened; `None` = the key is missing or the value is a whole table.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Diagnostic {
    /// Order of reports: file, line, column.
    pub fn sort_key(&self) -> impl Ord {
        (
            &self.file,
            self.line,
            self.column,
            self.rule,
            &self.field,
            &self.message,
        )
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if self.line > 0 {
            write!(f, "{}:{}:", self.line, self.column)?;
        }
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, " {severity}: ")?;
        match (&*self.field, &self.value) {
            ("", _) => {}
            (field, None) => write!(f, "{field}: ")?,
            (field, Some(value)) => write!(f, "{field} = {value}: ")?,
        }
        write!(f, "{}\n    {}", self.message, self.remedy)
    }
}
