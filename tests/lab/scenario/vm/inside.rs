//! The lab in a VM: a scenario of this program, run by itself on kernel 6.1, its findings told here as if it had run here.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{Run, agent, boot, seconds_since};
use crate::{Lab, clock, report::Report, vm::Spec};

/// An emulated processor misses shorter ones.
const INTERVAL: &str = "1s";
/// The whole scenario ends within this.
const LIMIT: Duration = Duration::from_mins(45);
/// Packing what it kept.
const PACKING: Duration = Duration::from_mins(1);

/// All of docs/modes.md.
pub(super) fn modes(run: &mut Run) -> Result<()> {
    inside(run, "modes")
}

/// VLAN legs, tunnel devices.
pub(super) fn devices(run: &mut Run) -> Result<()> {
    inside(run, "devices")
}

fn inside(run: &mut Run, scenario: &str) -> Result<()> {
    let lab = Lab::new()?;
    let agent = agent(run);
    let mut spec = Spec::new(scenario, &agent);
    spec.cpus = 2;
    spec.memory = 3072;
    for name in ["onearmd", "onearm", "onearm-decap"] {
        spec.files.push((run.wanted.bin_dir.join(name), name.to_owned()));
    }
    let mut vm = boot(run, &lab, &spec)?;
    let start = clock::now();
    let seed = run.wanted.seed.to_string();
    let argv = [
        "/lab/onearm-lab",
        "run",
        scenario,
        "--json",
        "--seed",
        &seed,
        "--interval",
        INTERVAL,
        "--bin-dir",
        "/lab",
    ];
    let done = vm.channel().run(&argv, LIMIT)?;
    run.report.figure(format!("{scenario}_s"), seconds_since(start));
    let said = done.stdout.lines().last().unwrap_or_default();
    let found: Report = serde_json::from_str(said)
        .with_context(|| format!("`{}` in the VM: {} {}", argv.join(" "), done.code, done.stderr))?;
    for check in found.checks {
        run.report.check(check.name, check.passed, check.detail);
    }
    for (name, value) in found.figures {
        run.report.figure(name, value);
    }
    if found.kept.is_some() {
        vm.script("tar -czf /root/kept.tar.gz lab-runs", PACKING)?
            .good("pack what was kept")?;
        let to = lab.dir().join(format!("{scenario}.tar.gz"));
        vm.channel().copy_out("/root/kept.tar.gz", &to, PACKING)?;
        run.keep_files(&lab, "vm")?;
    }
    vm.power_off()
}
