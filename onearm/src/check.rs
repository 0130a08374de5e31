//! What follows from several fields or from both files together: the classic traps, found before anything runs.
//!
//! Pure: [`lint`] sees two files that were read, and adds its findings with their positions. The daemon uses the same
//! code when it loads. A file with errors of its own is judged as far as it goes; rules that need the whole of it wait.

mod addresses;
mod capacity;
mod election;
mod families;
mod findings;
mod host;
mod legs;
mod modes;
mod nodes;
mod services;
mod sizes;
mod snat;
mod tracking;

#[cfg(test)]
mod tests;

pub use capacity::{Capacity, ServiceCapacity};
pub use host::{HostInterface, lint_host};
pub use nodes::lint_nodes;

use std::path::Path;

use onearm_ha::auth::PairKeys;

use crate::config::{
    Auth, Diagnostic, NodeConfig, PairConfig, PairFile, Parsed, Severity, read_node, read_pair,
};
use crate::key::{self, Reader};
use findings::Findings;

/// Files and what was found in them.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The node files; empty unless all files are free of errors.
    pub nodes: Vec<NodeConfig>,
    /// The pair's file; `None` unless all files are free of errors.
    pub pair: Option<PairConfig>,
    /// The pair's keys, where they were asked for and the pair has some; `None` unless all files are free of errors.
    pub keys: Option<PairKeys>,
    /// Errors and warnings in the order of files and lines.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads and judges a pair's file with the file of one node or of both; with `host`, against that machine too; with `reader`
/// also the key file that the first node names, as that user would read it, and the programs that it would run. What is
/// wrong with those has the severity `programs`: they are judged again before each run.
pub fn files(
    nodes: &[&Path],
    pair: &Path,
    host: Option<&[HostInterface]>,
    reader: Option<&Reader>,
    programs: Severity,
) -> Judged {
    let unjudged = read_pair(pair);
    let mut diagnostics = Vec::new();
    let mut drafts = false;
    let mut read: Vec<Parsed<NodeConfig>> = nodes.iter().map(|path| read_node(path)).collect();
    let mut with_first = None;
    for node in &mut read {
        let mut file = unjudged.clone();
        lint(node, &mut file);
        if let Some(interfaces) = host {
            lint_host(node, &mut file, interfaces);
        }
        if let Some(reader) = reader {
            let mut of_pair = Findings::default();
            let pair = &file.parsed.config;
            tracking::judge_programs(&node.config, pair, reader, programs, &mut of_pair);
            of_pair.file(&mut file.parsed);
        }
        drafts |= file.parsed.is_draft();
        diagnostics.append(&mut file.parsed.diagnostics);
        with_first.get_or_insert(file.parsed.config);
    }
    if let [first, second] = &mut *read {
        lint_nodes(first, second);
    }
    drafts |= read.iter().any(Parsed::is_draft);
    let mut keys = None;
    if let (Some(reader), Some(first), Some(pair)) = (reader, read.first(), &with_first)
        && pair.ha.auth == Auth::Hmac
        && !drafts
    {
        match key_file(&first.config, reader) {
            Ok(found) => keys = Some(found),
            Err(found) => {
                drafts |= found.iter().any(|found| found.severity == Severity::Error);
                diagnostics.extend(found);
            }
        }
    }
    diagnostics.extend(read.iter_mut().flat_map(|node| node.diagnostics.drain(..)));
    diagnostics.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    // What the pair's file does wrong by itself is found once with each node.
    diagnostics.dedup();
    if drafts {
        Judged {
            nodes: Vec::new(),
            pair: None,
            keys: None,
            diagnostics,
        }
    } else {
        Judged {
            nodes: read.into_iter().map(|node| node.config).collect(),
            pair: with_first,
            keys,
            diagnostics,
        }
    }
}

/// Reads the key file. That the user who asks may not read the daemon's is no fault of the file.
fn key_file(node: &NodeConfig, reader: &Reader) -> Result<PairKeys, Vec<Diagnostic>> {
    let found = key::read(&node.peer.key_file, reader);
    found.map_err(|mut found| {
        for unread in found.iter_mut().filter(|found| found.rule == "key-unread") {
            if !reader.is_this_process() {
                unread.severity = Severity::Warning;
                "run onearm check as root to have it judged".clone_into(&mut unread.remedy);
            }
        }
        found
    })
}

/// Judges both files.
pub fn lint(node: &mut Parsed<NodeConfig>, pair: &mut PairFile) {
    let mut of_node = Findings::default();
    let mut of_pair = Findings::default();
    sizes::judge(pair, &mut of_pair);
    election::judge(node, pair, &mut of_node, &mut of_pair);
    addresses::judge(node, pair, &mut of_node, &mut of_pair);
    legs::judge(node, pair, &mut of_node, &mut of_pair);
    families::judge(pair, &mut of_pair);
    services::judge(pair, &mut of_pair);
    modes::judge(pair, &mut of_pair);
    snat::judge(pair, &mut of_pair);
    tracking::judge(pair, &mut of_pair);
    of_node.file(node);
    of_pair.file(&mut pair.parsed);
}
