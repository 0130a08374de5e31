//! What is tracked, and the programs of the operator's.

use std::collections::BTreeSet;
use std::path::Path;

use super::findings::Findings;
use crate::config::{NodeConfig, PairConfig, PairFile, Severity};
use crate::key::Reader;
use crate::script::{self, Account};

pub(super) fn judge(file: &PairFile, findings: &mut Findings) {
    let pair = &file.parsed.config;
    let mut names = BTreeSet::new();
    for (place, script) in pair.ha.track.scripts.iter().enumerate() {
        if !names.insert(&script.name) {
            findings.error(
                "duplicate-script",
                format!("ha.track.scripts[{place}].name"),
                "another script has this name",
                "give each script a name of its own",
            );
        }
    }
    let mut services = BTreeSet::new();
    for (place, quorum) in pair.ha.track.quorum.iter().enumerate() {
        let field = |key| format!("ha.track.quorum[{place}].{key}");
        if !services.insert(&quorum.service) {
            findings.error(
                "duplicate-quorum",
                field("service"),
                "this service has a quorum already",
                "write one for each service",
            );
        }
        let Some(service) = pair
            .services
            .iter()
            .find(|service| service.name == quorum.service)
        else {
            // One that could not be read may be it.
            if !file.parsed.is_draft() {
                let remedy = "write the name of a [[service]]";
                findings.error(
                    "unknown-service",
                    field("service"),
                    "there is no such service",
                    remedy,
                );
            }
            continue;
        };
        if service.check.is_none() {
            let message = "the service has no check: its servers always count as up";
            findings.error("no-effect", field("service"), message, "give the service a check");
        }
        let of = service.servers.len();
        if quorum.servers as usize > of {
            let message = format!("the service has {of} servers: there would never be enough");
            findings.error("quorum", field("servers"), message, format!("write at most {of}"));
        }
    }
}

/// Where the programs lie on this machine, and as whom they would run, for the daemon as which `reader` reads. `severity`:
/// of what is found.
pub(super) fn judge_programs(
    node: &NodeConfig,
    pair: &PairConfig,
    reader: &Reader,
    severity: Severity,
    findings: &mut Findings,
) {
    let scripts = pair.ha.track.scripts.iter().enumerate();
    let scripts = scripts.map(|(place, script)| {
        (
            format!("ha.track.scripts[{place}].command[0]"),
            script.command.first(),
        )
    });
    let hooks = pair.ha.hooks.commands();
    let hooks = hooks.map(|(key, command)| (format!("ha.hooks.{key}[0]"), command.first()));
    let mut any = false;
    for (field, path) in scripts.chain(hooks) {
        any = true;
        if let Some(Err(wrong)) = path.map(|path| script::judge(Path::new(path))) {
            findings.find(severity, "program-access", field, wrong.message, wrong.remedy);
        }
    }
    let account = Account::find(
        &pair.ha.script_user,
        reader.user(),
        reader.group(),
        node.control_group.as_deref(),
    );
    if any && let Err(message) = account {
        let remedy = "the package makes onearm-script; or name a user that is used for nothing else";
        findings.find(severity, "script-user", "ha.script_user", message, remedy);
    }
}
