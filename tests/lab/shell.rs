//! A shell in a running lab, for people.

use std::{fmt::Write as _, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use crate::{
    node::{Kind, Pair},
    service::{Mode, PairSpec},
    topology::{Arms, NODES, OneArm, Options, SERVERS},
    traffic,
};

/// What the lab should hold.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where the servers are.
    pub arms: Arms,
    /// Mode of the services.
    pub mode: Mode,
    /// Advert interval.
    pub interval: Duration,
    /// What runs in the nodes' place; nothing for servers only.
    pub kind: Option<Kind>,
    /// Folder of `onearmd` and `onearm`.
    pub bin_dir: PathBuf,
}

/// Builds the lab, starts the pair, opens a shell and tears everything down when it ends.
///
/// # Errors
/// When something does not come up or there is no shell.
pub fn open(wanted: &Wanted) -> Result<()> {
    let lab = OneArm::build(Options {
        arms: wanted.arms,
        ..Options::default()
    })?;
    let _servers = traffic::start_servers(&lab, &["s1", "s2", "s3", "rem", "out"])?;
    let mut spec = PairSpec::web_and_echo(wanted.mode, wanted.interval);
    if wanted.arms == Arms::Two {
        spec = spec.with_two_arms();
    }
    let mut pair = match wanted.kind {
        Some(kind) => Some(Pair::prepare(kind, &lab, &spec, &wanted.bin_dir)?),
        None => None,
    };
    if let Some(pair) = &mut pair {
        pair.start()?;
    }
    let file = lab.lab().dir().join("shell.rc");
    std::fs::write(&file, greeting(&lab, wanted))?;
    Command::new("bash")
        .arg("--rcfile")
        .arg(&file)
        .status()
        .context("cannot start bash")?;
    if let Some(mut pair) = pair {
        pair.scrap()?;
    }
    Ok(())
}

/// What the shell reads first: one function for each namespace, and a word about them.
fn greeting(lab: &OneArm, wanted: &Wanted) -> String {
    let mut text = String::from("[ -f ~/.bashrc ] && . ~/.bashrc\nPS1='lab \\w# '\n");
    let bin = wanted.bin_dir.display();
    for short in lab.names() {
        // Writing to a String cannot fail.
        writeln!(
            text,
            "{short}() {{ ip netns exec {} \"${{@:-bash}}\"; }}",
            lab.ns(short).name()
        )
        .ok();
    }
    writeln!(
        text,
        "sw() {{ ip netns exec {} \"${{@:-bash}}\"; }}",
        lab.switch().ns().name()
    )
    .ok();
    let dir = lab.lab().dir().display();
    if wanted.kind == Some(Kind::Onearm) {
        for node in NODES {
            writeln!(
                text,
                "onearm-{node}() {{ {node} {bin}/onearm \"$@\" --run-dir {dir}/{node}/run; }}"
            )
            .ok();
        }
    }
    let names: Vec<&str> = lab.names().collect();
    let drawing = if wanted.arms == Arms::Two {
        "Two arms: VIP 192.168.100.100 outside, gateway 10.1.0.1 inside"
    } else {
        "One-arm lab: 192.168.100.0/24, VIP .100, gateway .1"
    };
    writeln!(text, "echo '{drawing}, servers {}.'", SERVERS.join(" ")).ok();
    writeln!(
        text,
        "echo 'NAME COMMAND runs it inside: sw {}.  Example: out curl 192.168.100.100'",
        names.join(" ")
    )
    .ok();
    if wanted.kind == Some(Kind::Onearm) {
        text.push_str("echo 'Ask a node: onearm-lb1 status, onearm-lb2 events.'\n");
    }
    writeln!(
        text,
        "echo 'Files of this lab: {dir}.  Leave with exit: everything is torn down.'"
    )
    .ok();
    text
}
