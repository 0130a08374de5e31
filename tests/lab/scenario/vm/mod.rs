//! Runs in VMs with Debian's kernel 6.1.

mod bpf;
mod facilities;
mod faults;
mod inside;
mod package;
mod shutdown;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::{Run, Scenario};
use crate::{
    Lab, clock,
    vm::{Image, Spec, Vm},
};

/// The scenarios, in the order they are listed.
pub(super) fn scenarios() -> Vec<Scenario> {
    let of = |name, about, run| Scenario {
        name,
        about,
        for_peers: false,
        run,
    };
    vec![
        of(
            "vm-smoke",
            "two VMs: commands, files, pause, snapshots, VLAN, bond, tunnels, netem",
            facilities::run,
        ),
        of(
            "vm-package",
            "the Debian package in a VM: installed, started, serving, killed, stopped, removed",
            package::run,
        ),
        of(
            "vm-shutdown",
            "an owner's machine shuts down: handed over in order, before its network is down",
            shutdown::run,
        ),
        of("vm-bpf", "the dataplane's own tests on kernel 6.1", bpf::run),
        of(
            "vm-faults",
            "a node paused, put back to a snapshot, copied, and running twice: one owner",
            faults::run,
        ),
        of(
            "vm-modes",
            "scenario modes on kernel 6.1: the whole lab in one VM",
            inside::modes,
        ),
        of(
            "vm-devices",
            "scenario devices on kernel 6.1: VLAN legs and tunnel devices",
            inside::devices,
        ),
    ]
}

/// The agent of this run's VMs.
fn agent(run: &Run) -> PathBuf {
    run.wanted.bin_dir.join("onearm-lab")
}

/// A VM that has booted, with the kernel everything here is about.
fn boot(run: &mut Run, lab: &Lab, spec: &Spec<'_>) -> Result<Vm> {
    let image = Image::get(false)?;
    let start = clock::now();
    let mut vm = Vm::boot(lab, &image, spec)?;
    run.report.figure("boot_s", seconds_since(start));
    let kernel = vm.run("uname -r")?;
    run.report.check(
        "the VM runs kernel 6.1",
        kernel.starts_with("6.1."),
        kernel.trim(),
    );
    Ok(vm)
}

/// Files of `folder` (from the folder of the project) whose names end with `ending`, ascending.
fn files(folder: &str, ending: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {folder}; `make vm` builds it"))?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.to_string_lossy().ends_with(ending))
        .collect();
    found.sort();
    if found.is_empty() {
        bail!("nothing in {folder}; `make vm` builds it");
    }
    Ok(found)
}

/// Waits until `script` succeeds in `vm`.
fn wait_for(vm: &mut Vm, what: &str, script: &str, limit: Duration) -> Result<()> {
    clock::wait_for(what, limit, Duration::from_millis(200), || {
        Ok((vm.script(script, limit)?.code == 0).then_some(()))
    })
}

/// Seconds since `start`.
fn seconds_since(start: clock::Nanos) -> f64 {
    Duration::from_nanos(clock::now().saturating_sub(start)).as_secs_f64()
}
