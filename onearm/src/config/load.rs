use std::fmt;
use std::io::Read as _;
use std::path::Path;

use onearm_ha::auth::PairKeys;

use super::diagnostic::{Diagnostic, Severity};
use super::limits;
use super::node::NodeConfig;
use super::node_file::parse_node;
use super::pair::PairConfig;
use super::pair_file::{PairFile, parse_pair};
use super::source::{Parsed, Source};
use crate::key::Reader;

/// Where this node's own file is.
pub const DEFAULT_NODE_FILE: &str = "/etc/onearm/node.toml";
/// Where the pair's file is.
pub const DEFAULT_PAIR_FILE: &str = "/etc/onearm/pair.toml";

/// A configuration without errors.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// `node.toml`.
    pub node: NodeConfig,
    /// `pair.toml`.
    pub pair: PairConfig,
    /// The pair's keys, exactly where [`super::Auth::Hmac`] asks for them.
    pub keys: Option<PairKeys>,
    /// What runs, but most likely not as meant.
    pub warnings: Vec<Diagnostic>,
}

/// Everything that is wrong, errors and warnings, in the order of files and lines.
#[derive(Clone, Debug)]
pub struct Refused {
    /// At least one error.
    pub diagnostics: Vec<Diagnostic>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, diagnostic) in self.diagnostics.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            diagnostic.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// Reads and judges both files, and the key file, as `onearm check` does; but a program of the operator's that would not be
/// run is a warning: without it the node does its work.
///
/// # Errors
/// [`Refused`] with every error of the files when there is one; nothing has been changed anywhere.
pub fn load(node: &Path, pair: &Path) -> Result<Loaded, Refused> {
    let crate::check::Judged {
        nodes,
        pair,
        keys,
        diagnostics,
    } = crate::check::files(
        &[node],
        pair,
        None,
        Some(&Reader::this_process()),
        Severity::Warning,
    );
    match (nodes.into_iter().next(), pair) {
        (Some(node), Some(pair)) => Ok(Loaded {
            node,
            pair,
            keys,
            warnings: diagnostics,
        }),
        _ => Err(Refused { diagnostics }),
    }
}

/// Reads and parses a `node.toml`; one that cannot be read is an empty draft with that error.
pub fn read_node(path: &Path) -> Parsed<NodeConfig> {
    match read(path) {
        Ok(source) => parse_node(source),
        Err(error) => Parsed::unread(super::node_file::draft(), *error),
    }
}

/// Reads and parses a `pair.toml`; one that cannot be read is an empty draft with that error.
pub fn read_pair(path: &Path) -> PairFile {
    match read(path) {
        Ok(source) => parse_pair(source),
        Err(error) => PairFile::unread(*error),
    }
}

/// Reads a file of at most [`limits::FILE_BYTES`].
///
/// # Errors
/// A diagnostic about the file as a whole: unreadable, too long, not UTF-8.
pub fn read(path: &Path) -> Result<Source, Box<Diagnostic>> {
    let name = path.display().to_string();
    let whole = |rule, message: String, remedy: &str| {
        Box::new(Diagnostic {
            severity: Severity::Error,
            rule,
            file: name.clone(),
            line: 0,
            column: 0,
            field: String::new(),
            value: None,
            message,
            remedy: remedy.to_owned(),
        })
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(limits::FILE_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| {
            whole(
                "unreadable",
                format!("cannot be read: {error}"),
                "check path and permissions",
            )
        })?;
    if bytes.len() > limits::FILE_BYTES {
        let message = format!("longer than {} bytes", limits::FILE_BYTES);
        return Err(whole("too-long", message, "is it the right file?"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source::new(name, text)),
        Err(error) => {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = good.split(|byte| *byte == b'\n').count();
            let message = format!("not UTF-8 text (first bad byte in line {line})");
            Err(whole("encoding", message, "save it as UTF-8"))
        }
    }
}
