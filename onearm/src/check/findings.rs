use crate::config::{Parsed, Severity};

/// Findings about one file, before they have a position.
#[derive(Debug, Default)]
pub(super) struct Findings(Vec<Finding>);

#[derive(Debug)]
struct Finding {
    severity: Severity,
    rule: &'static str,
    field: String,
    message: String,
    remedy: String,
}

impl Findings {
    /// The configuration is refused.
    pub(super) fn error(
        &mut self,
        rule: &'static str,
        field: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.find(Severity::Error, rule, field, message, remedy);
    }

    /// The configuration runs, but most likely not as meant.
    pub(super) fn warn(
        &mut self,
        rule: &'static str,
        field: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.find(Severity::Warning, rule, field, message, remedy);
    }

    /// As [`Self::error`] or [`Self::warn`].
    pub(super) fn find(
        &mut self,
        severity: Severity,
        rule: &'static str,
        field: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding {
            severity,
            rule,
            field: field.into(),
            message: message.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds them to the file they are about.
    pub(super) fn file<T>(self, parsed: &mut Parsed<T>) {
        for Finding {
            severity,
            rule,
            field,
            message,
            remedy,
        } in self.0
        {
            parsed.find(severity, rule, &field, message, remedy);
        }
    }
}
