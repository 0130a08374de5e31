//! One VM: its QEMU, its disks, its legs, and what can be done to it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::{Channel, Finished, Image, Qmp};
use crate::{Lab, Namespace, Switch, clock, netns, process::Process, topology::colons};

/// A VM without hardware help is up within this; 30 s when the machine is quiet.
const BOOT: Duration = Duration::from_mins(5);
/// What it writes to, and `/lab`.
const DISKS: [&str; 2] = ["root.qcow2", "lab.raw"];
/// QEMU offers its sockets within this.
const SOCKETS: Duration = Duration::from_secs(20);
/// A command that nobody gave another limit ends within this.
const PATIENCE: Duration = Duration::from_mins(2);
/// XDP in the guest refuses a device that hands it merged frames.
const NO_MERGING: &str = "guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off";

/// An interface of a VM: `eth0` is the first, `eth1` the second.
#[derive(Clone, Debug)]
pub struct Leg<'a> {
    /// The switch it is plugged into.
    pub switch: &'a Switch,
    /// Short name of the port: `p-SHORT` on the switch.
    pub port: String,
    /// Its MAC.
    pub mac: [u8; 6],
}

/// What a VM is made of.
#[derive(Clone, Debug)]
pub struct Spec<'a> {
    /// Short name, unique in the lab.
    pub name: &'a str,
    /// `onearm-lab`, which is the agent inside.
    pub agent: &'a Path,
    /// Processors, from 1.
    pub cpus: u8,
    /// Memory in MiB.
    pub memory: u16,
    /// Interfaces, in order.
    pub legs: Vec<Leg<'a>>,
    /// Files of this machine that appear in `/lab` (read-only) under the name given.
    pub files: Vec<(PathBuf, String)>,
}

impl<'a> Spec<'a> {
    /// One processor, 1 GiB, no legs, no files.
    pub fn new(name: &'a str, agent: &'a Path) -> Self {
        Self {
            name,
            agent,
            cpus: 1,
            memory: 1024,
            legs: Vec::new(),
            files: Vec::new(),
        }
    }
}

/// A running VM. Dropping it ends its QEMU.
#[derive(Debug)]
pub struct Vm {
    name: String,
    folder: PathBuf,
    qemu: Process,
    qmp: Qmp,
    channel: Channel,
}

impl Vm {
    /// Starts it. It is not up yet: [`wait_up`](Self::wait_up); many can start at the same time.
    ///
    /// # Errors
    /// When a disk, a leg or QEMU itself cannot be made.
    pub fn start(lab: &Lab, image: &Image, spec: &Spec) -> Result<Self> {
        let folder = folder(lab, spec)?;
        disks(&folder, image, spec)?;
        Self::launch(lab, folder, &[], image, spec)
    }

    /// Starts another one from what was kept here under `snapshot`: its disk, its memory, its MACs; it goes on where this
    /// one was. `spec` is this one's with another name and other ports. This one must be paused.
    ///
    /// # Errors
    /// When its disks cannot be copied, or as [`start`](Self::start); when it does not answer.
    pub fn start_twin(&self, lab: &Lab, image: &Image, spec: &Spec, snapshot: &str) -> Result<Self> {
        let folder = folder(lab, spec)?;
        for disk in DISKS {
            fs::copy(self.folder.join(disk), folder.join(disk))?;
        }
        let mut twin = Self::launch(lab, folder, &["-loadvm", snapshot], image, spec)?;
        twin.channel.ping(PATIENCE)?;
        Ok(twin)
    }

    fn launch(lab: &Lab, folder: PathBuf, more: &[&str], image: &Image, spec: &Spec) -> Result<Self> {
        let ns = lab.namespace(&format!("vm-{}", spec.name))?;
        for leg in &spec.legs {
            ns.run(&format!("ip tuntap add dev {} mode tap", Switch::port(&leg.port)))?;
        }
        let line = command_line(&folder, image, spec);
        let argv: Vec<&str> = line
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        let mut qemu = ns.spawn(&argv, &[], &folder.join("qemu.log"))?;
        let socket = folder.join("qmp");
        clock::wait_for("QEMU's sockets", SOCKETS, Duration::from_millis(10), || {
            if !qemu.is_running()? {
                let why = fs::read_to_string(folder.join("qemu.log")).unwrap_or_default();
                bail!("QEMU has ended: {}", why.trim());
            }
            Ok(socket.exists().then_some(()))
        })?;
        let qmp = Qmp::connect(&socket)?;
        let channel = Channel::connect(&folder.join("agent"))?;
        plug(&ns, &spec.legs)?;
        Ok(Self {
            name: spec.name.to_owned(),
            folder,
            qemu,
            qmp,
            channel,
        })
    }

    /// Starts it and waits until it is up.
    ///
    /// # Errors
    /// As [`start`](Self::start) and [`wait_up`](Self::wait_up).
    pub fn boot(lab: &Lab, image: &Image, spec: &Spec) -> Result<Self> {
        let mut vm = Self::start(lab, image, spec)?;
        vm.wait_up()?;
        Ok(vm)
    }

    /// Waits until its agent answers.
    ///
    /// # Errors
    /// When it does not come up; the end of the console is in the text.
    pub fn wait_up(&mut self) -> Result<()> {
        self.channel.ping(BOOT).with_context(|| {
            let console = fs::read_to_string(self.console_log()).unwrap_or_default();
            let last: Vec<&str> = console.lines().rev().take(8).collect();
            let last = last.into_iter().rev().collect::<Vec<_>>().join("\n");
            format!("VM {} does not come up; its console:\n{last}", self.name)
        })
    }

    /// Its commands and files.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Runs a command line (split at blanks) inside; what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub fn run(&mut self, line: &str) -> Result<String> {
        let argv: Vec<&str> = line.split_whitespace().collect();
        self.channel.run(&argv, PATIENCE)?.good(&format!("`{line}`"))
    }

    /// Runs a script of the shell inside, whatever its exit code.
    ///
    /// # Errors
    /// When it cannot be run or does not end within `limit`.
    pub fn script(&mut self, script: &str, limit: Duration) -> Result<Finished> {
        self.channel.run(&["sh", "-c", script], limit)
    }

    /// Writes a text file inside.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&mut self, path: &str, text: &str) -> Result<()> {
        let here = self.folder.join("written");
        fs::write(&here, text)?;
        self.channel.copy_in(&here, path, "644", PATIENCE)
    }

    /// Stops its processors: nothing of it runs, its clocks stand still.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn pause(&mut self) -> Result<()> {
        self.qmp.order("stop", &json!({})).map(drop)
    }

    /// Ends [`pause`](Self::pause).
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn resume(&mut self) -> Result<()> {
        self.qmp.order("cont", &json!({})).map(drop)
    }

    /// Takes the carrier of leg `index` away, or gives it back.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn set_carrier(&mut self, index: usize, up: bool) -> Result<()> {
        let arguments = json!({ "name": format!("net{index}"), "up": up });
        self.qmp.order("set_link", &arguments).map(drop)
    }

    /// Keeps its whole state, memory included, under `name`. No command may be under way.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub fn save(&mut self, name: &str) -> Result<()> {
        self.qmp.monitor(&format!("savevm {name}"))
    }

    /// Returns to the state kept under `name`.
    ///
    /// # Errors
    /// When QEMU refuses or the VM does not answer afterwards.
    pub fn load(&mut self, name: &str) -> Result<()> {
        self.qmp.monitor(&format!("loadvm {name}"))?;
        self.channel.ping(PATIENCE)
    }

    /// Pulls the plug: its processors stop at once, its disk stays as it is.
    ///
    /// # Errors
    /// When QEMU does not end.
    pub fn power_off(mut self) -> Result<()> {
        // The connection may end before the answer.
        self.qmp.order("quit", &json!({})).ok();
        self.qemu.wait(Duration::from_secs(20)).map(drop)
    }

    /// Whether its QEMU runs.
    ///
    /// # Errors
    /// When the kernel cannot tell.
    pub fn is_running(&mut self) -> Result<bool> {
        self.qemu.is_running()
    }

    /// Socket of its serial console.
    pub fn console(&self) -> PathBuf {
        self.folder.join("console")
    }

    /// What its console showed so far.
    pub fn console_log(&self) -> PathBuf {
        self.folder.join("console.log")
    }
}

fn folder(lab: &Lab, spec: &Spec) -> Result<PathBuf> {
    let folder = lab.dir().join(format!("vm-{}", spec.name));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The disk over the image, and the disk `/lab` with the agent and the files.
fn disks(folder: &Path, image: &Image, spec: &Spec) -> Result<()> {
    let [root, lab] = DISKS.map(|disk| folder.join(disk));
    let mut overlay = Command::new("qemu-img");
    overlay.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
    netns::run(overlay.arg(image.disk()).arg(root))?;
    let staged = folder.join("lab");
    fs::create_dir_all(&staged)?;
    let agent = (spec.agent.to_owned(), "onearm-lab".to_owned());
    let mut bytes = 0;
    for (from, name) in spec.files.iter().chain([&agent]) {
        bytes +=
            fs::copy(from, staged.join(name)).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    let mebibytes = (bytes + bytes / 8) / (1 << 20) + 16;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-t", "ext4", "-L", "lab", "-d"])
        .arg(&staged)
        .arg(lab)
        .arg(format!("{mebibytes}M"))
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    netns::run(&mut make)?;
    fs::remove_dir_all(staged)?;
    Ok(())
}

fn command_line(folder: &Path, image: &Image, spec: &Spec) -> Vec<String> {
    let at = |name: &str| folder.join(name).display().to_string();
    let socket = |id: &str, more: &str| format!("socket,id={id},path={},server=on,wait=off{more}", at(id));
    let mut line: Vec<String> = [
        "qemu-system-x86_64",
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
        "-accel",
        "tcg",
        "-cpu",
        "max",
        "-device",
        "virtio-serial-pci",
        "-append",
        "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1 quiet",
    ]
    .map(str::to_owned)
    .into();
    let mut add = |option: &str, value: String| line.extend([option.to_owned(), value]);
    add("-smp", spec.cpus.to_string());
    add("-m", spec.memory.to_string());
    add("-kernel", image.kernel().display().to_string());
    add("-initrd", image.initrd().display().to_string());
    add(
        "-drive",
        format!(
            "if=none,id=root,format=qcow2,cache=unsafe,file={}",
            at("root.qcow2")
        ),
    );
    add("-device", "virtio-blk-pci,drive=root".to_owned());
    add(
        "-drive",
        format!("if=none,id=lab,format=raw,readonly=on,file={}", at("lab.raw")),
    );
    add("-device", "virtio-blk-pci,drive=lab".to_owned());
    add("-chardev", socket("agent", ""));
    add(
        "-device",
        "virtserialport,chardev=agent,name=onearm.agent".to_owned(),
    );
    add(
        "-chardev",
        socket("console", &format!(",logfile={}", at("console.log"))),
    );
    add("-serial", "chardev:console".to_owned());
    add("-qmp", format!("unix:{},server=on,wait=off", at("qmp")));
    for (index, leg) in spec.legs.iter().enumerate() {
        let port = Switch::port(&leg.port);
        add(
            "-netdev",
            format!("tap,id=net{index},ifname={port},script=no,downscript=no,vhost=off"),
        );
        add(
            "-device",
            format!(
                "virtio-net-pci,netdev=net{index},mac={},romfile=,{NO_MERGING}",
                colons(leg.mac)
            ),
        );
    }
    line
}

/// Moves the taps, which QEMU holds by now, to their switches.
fn plug(ns: &Namespace, legs: &[Leg]) -> Result<()> {
    for leg in legs {
        let port = Switch::port(&leg.port);
        ns.run(&format!("ip link set {port} netns {}", leg.switch.ns().name()))?;
        leg.switch
            .ns()
            .run(&format!("ip link set {port} master br0 up"))?;
    }
    Ok(())
}
