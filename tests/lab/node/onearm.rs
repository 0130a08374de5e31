//! onearm itself: its two files, `onearmd` in the node's namespace, `onearm` to ask it.

use std::{
    fmt::Write as _,
    fs,
    net::IpAddr,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Node, Role, folder};
use crate::{
    clock::{self, Nanos},
    netns::Namespace,
    process::Process,
    service::{PairSpec, Service},
    topology::{self, NODES, OneArm},
};

/// One node run by onearm.
#[derive(Debug)]
pub struct OnearmNode {
    index: usize,
    ns: Namespace,
    dir: PathBuf,
    bin_dir: PathBuf,
    running: Option<Process>,
    notify: Option<UnixDatagram>,
    started_at: Nanos,
    record: bool,
}

impl OnearmNode {
    /// Writes its files.
    ///
    /// # Errors
    /// When the programs are not in `bin_dir` or a file cannot be written.
    pub fn prepare(lab: &OneArm, index: usize, spec: &PairSpec, bin_dir: &Path) -> Result<Self> {
        for program in ["onearmd", "onearm"] {
            if !bin_dir.join(program).is_file() {
                bail!(
                    "no {program} in {}: build it first, or name its folder with --bin-dir",
                    bin_dir.display()
                );
            }
        }
        let dir = folder(lab, index)?;
        let node = Self {
            index,
            ns: lab.ns(NODES[index]).clone(),
            dir,
            bin_dir: bin_dir.to_owned(),
            running: None,
            notify: None,
            started_at: 0,
            record: spec.record,
        };
        let key_file = node.key_file();
        fs::write(node.node_file(), node_toml(index, spec, Some(&key_file)))?;
        fs::copy(pair_key(lab, bin_dir)?, &key_file)?;
        node.write_pair(&pair_toml(spec))?;
        for sub in ["state", "run"] {
            fs::create_dir_all(node.dir.join(sub))?;
        }
        Ok(node)
    }

    /// The node's copy of the pair's key.
    pub fn key_file(&self) -> PathBuf {
        self.dir.join("pair.key")
    }

    fn node_file(&self) -> PathBuf {
        self.dir.join("node.toml")
    }

    /// Replaces `pair.toml`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_pair(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.dir.join("pair.toml"), text)?)
    }

    /// Command line of the daemon.
    fn daemon_line(&self, more: &[&str]) -> Vec<String> {
        let path = |p: &Path| p.display().to_string();
        let mut line = vec![
            path(&self.bin_dir.join("onearmd")),
            "--node".to_owned(),
            path(&self.node_file()),
            "--pair".to_owned(),
            path(&self.dir.join("pair.toml")),
            "--state-dir".to_owned(),
            path(&self.dir.join("state")),
            "--run-dir".to_owned(),
            path(&self.dir.join("run")),
        ];
        line.extend(more.iter().map(|w| (*w).to_owned()));
        line
    }

    /// Runs `onearm ARGS --run-dir …` in the node's namespace; status and output as they are.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn cli(&self, args: &[&str]) -> Result<std::process::Output> {
        let program = self.bin_dir.join("onearm").display().to_string();
        let run_dir = self.dir.join("run").display().to_string();
        let mut argv = vec![program.as_str()];
        argv.extend(args);
        argv.extend(["--run-dir", &run_dir]);
        self.ns.output(&argv)
    }

    /// Runs `onearm … --json` and reads what it prints.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn ask(&self, args: &[&str]) -> Result<Value> {
        let mut all = args.to_vec();
        all.push("--json");
        let output = self.cli(&all)?;
        // 1 says that something is unhealthy, and prints all the same.
        if !matches!(output.status.code(), Some(0 | 1)) || output.stdout.is_empty() {
            bail!(
                "{}: `onearm {}` failed ({}): {}",
                self.short(),
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("`onearm {}` printed no JSON", args.join(" ")))
    }

    fn recording(&self) -> String {
        self.dir.join("recording").display().to_string()
    }

    /// Runs what was recorded again and gives what `onearm replay --json` says.
    ///
    /// # Errors
    /// When the recording cannot be read, or something came out otherwise.
    pub fn replay(&self) -> Result<Value> {
        let program = self.bin_dir.join("onearm").display().to_string();
        let printed = self.ns.exec(&[&program, "replay", &self.recording(), "--json"])?;
        Ok(serde_json::from_str(&printed)?)
    }

    /// Runs `onearmd --restore` and gives what it printed.
    ///
    /// # Errors
    /// When it fails.
    pub fn restore(&self) -> Result<String> {
        let line = self.daemon_line(&["--restore"]);
        let argv: Vec<&str> = line.iter().map(String::as_str).collect();
        self.ns.exec(&argv)
    }

    /// Waits for READY=1 and gives the time it took from the start.
    ///
    /// # Errors
    /// When it does not come within `limit` or the daemon ends before.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<Nanos> {
        let socket = self.notify.as_ref().context("the daemon was not started")?;
        let running = self.running.as_mut().context("the daemon was not started")?;
        let log = running.log().to_owned();
        let mut buffer = [0; 1024];
        clock::wait_for("READY=1", limit, Duration::from_millis(1), || {
            while let Ok(len) = socket.recv(&mut buffer) {
                if String::from_utf8_lossy(buffer.get(..len).unwrap_or_default()).contains("READY=1") {
                    return Ok(Some(()));
                }
            }
            if !running.is_running()? {
                bail!("onearmd ended before it was ready: {}", tail(&log));
            }
            Ok(None)
        })?;
        Ok(clock::now() - self.started_at)
    }

    /// Waits until the servers of a service have that health, in the order of the file; the last health seen if they do not.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub fn wait_health(&self, service: &str, wanted: &[&str], limit: Duration) -> Result<Vec<String>> {
        let end = clock::now() + clock::nanos(limit);
        loop {
            let services = self.ask(&["services"])?;
            let named = services.as_array().into_iter().flatten();
            let servers = named
                .filter(|s| s["name"] == service)
                .filter_map(|s| s["servers"].as_array())
                .flatten();
            let health: Vec<String> = servers
                .map(|server| server["health"].as_str().unwrap_or_default().to_owned())
                .collect();
            if health == wanted || clock::now() >= end {
                return Ok(health);
            }
            clock::observe(Duration::from_millis(50));
        }
    }

    /// Pid of the main process; 0 when it does not run.
    pub fn main_pid(&self) -> i32 {
        self.running.as_ref().map_or(0, Process::pid)
    }

    /// Folder of the node's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// The key of the lab's pair, made by the first who asks.
fn pair_key(lab: &OneArm, bin_dir: &Path) -> Result<PathBuf> {
    let path = lab.lab().dir().join("pair.key");
    if !path.exists() {
        let made = std::process::Command::new(bin_dir.join("onearm"))
            .args(["key", "new", "--out"])
            .arg(&path)
            .output()?;
        if !made.status.success() {
            bail!("no key was made: {}", String::from_utf8_lossy(&made.stderr));
        }
    }
    Ok(path)
}

/// Last lines of a log.
fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(5)..)
        .unwrap_or_default()
        .join(" | ")
}

impl Node for OnearmNode {
    fn short(&self) -> &'static str {
        NODES[self.index]
    }

    fn ns(&self) -> &Namespace {
        &self.ns
    }

    fn programs(&self) -> &'static [&'static str] {
        &["onearmd"]
    }

    fn start(&mut self) -> Result<()> {
        let socket_path = self.dir.join("notify");
        drop(fs::remove_file(&socket_path));
        let socket = UnixDatagram::bind(&socket_path)?;
        socket.set_nonblocking(true)?;
        let recording = self.recording();
        let line = if self.record {
            self.daemon_line(&["--record", &recording])
        } else {
            self.daemon_line(&[])
        };
        let argv: Vec<&str> = line.iter().map(String::as_str).collect();
        let notify = socket_path.display().to_string();
        self.started_at = clock::now();
        let env = [("NOTIFY_SOCKET", notify.as_str()), ("RUST_BACKTRACE", "1")];
        self.running = Some(self.ns.spawn(&argv, &env, &self.dir.join("onearmd.log"))?);
        self.notify = Some(socket);
        Ok(())
    }

    fn role(&mut self) -> Result<Role> {
        if let Some(running) = &mut self.running
            && !running.is_running()?
        {
            let log = running.log().to_owned();
            bail!("{}: onearmd has ended: {}", self.short(), tail(&log));
        }
        // Until the control socket answers, the node is neither.
        let output = self.cli(&["status", "--json"])?;
        if output.status.code() == Some(2) {
            bail!(
                "`onearm status` does not understand the lab: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        let Ok(status) = serde_json::from_slice::<Value>(&output.stdout) else {
            return Ok(Role::Neither);
        };
        Ok(match status.get("state").and_then(Value::as_str) {
            Some("active") => Role::Active,
            Some("standby") => Role::Standby,
            _ => Role::Neither,
        })
    }

    fn ask_to_stop(&self) {
        if let Some(running) = &self.running {
            running.signal(Signal::SIGTERM);
        }
    }

    fn reap(&mut self, limit: Duration) -> Result<()> {
        if let Some(mut running) = self.running.take() {
            running.wait(limit)?;
        }
        clock::wait_for(
            "the end of the HA process",
            limit,
            Duration::from_millis(2),
            || Ok(self.pids().is_empty().then_some(())),
        )
    }

    fn clean_up(&mut self) -> Result<()> {
        self.restore().map(drop)
    }

    fn switch_over(&mut self) -> Result<bool> {
        let output = self.cli(&["ha", "switchover"])?;
        match output.status.code() {
            Some(0) => Ok(true),
            // It does not know the command.
            Some(2) => Ok(false),
            _ => bail!(
                "{}: `onearm ha switchover` failed ({}): {}",
                self.short(),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            ),
        }
    }

    fn wait_checked(&mut self, limit: Duration) -> Result<()> {
        let what = format!("{} to have checked its servers", self.short());
        clock::wait_for(&what, limit, Duration::from_millis(50), || {
            let services = self.ask(&["services"])?;
            Ok((!services.to_string().contains("\"pending\"")).then_some(()))
        })
    }

    fn wait_synced(&mut self, _flows: usize, limit: Duration) -> Result<()> {
        let mut verdict = Value::Null;
        clock::wait_for(
            "the tables of flows to be equal",
            limit,
            Duration::from_millis(20),
            || {
                verdict = self.ask(&["status"])?["sync"].take();
                Ok((verdict["verdict"] == "equal").then_some(()))
            },
        )
        .with_context(|| format!("{}: {verdict}", self.short()))
    }

    fn as_onearm(&self) -> Option<&OnearmNode> {
        Some(self)
    }
}

/// What `node.toml` of node `index` says for `spec`; its key is in `key_file`, else in the default place.
pub(crate) fn node_toml(index: usize, spec: &PairSpec, key_file: Option<&Path>) -> String {
    let peer = NODES[1 - index];
    let address: IpAddr = if spec.announce.iter().all(IpAddr::is_ipv6) {
        topology::link_local(peer).into()
    } else {
        topology::address(peer).into()
    };
    let mut peer_keys = vec![format!("address = \"{address}\"")];
    if address.is_ipv4() && spec.services.iter().any(|s| s.vip.is_ipv6()) {
        peer_keys.push(format!("address6 = \"{}\"", topology::link_local(peer)));
    }
    if spec.peer_link {
        let [own, other] = [index, 1 - index].map(topology::link_address);
        peer_keys.push(format!(
            "interface = \"eth1\", link_address = \"{other}\", own_link_address = \"{own}\""
        ));
    }
    if let Some(key) = key_file {
        peer_keys.push(format!("key_file = \"{}\"", key.display()));
    }
    let peer = format!("{{ {} }}", peer_keys.join(", "));
    let mut text = format!(
        "name = \"{}\"\nid = {}\npriority = {}\npeer = {peer}\n",
        NODES[index],
        index + 1,
        spec.priorities[index]
    );
    let legs: &[(&str, &str, &str)] = if spec.two_arms {
        &[("wan", "eth0", "outside"), ("lan", "eth1", "inside")]
    } else {
        &[("lan", "eth0", "service")]
    };
    // Both ends of the cables are the lab's: frames sent by a native program arrive. A VLAN has no native programs.
    for ((name, interface, role), place) in legs.iter().zip(0..) {
        let (vlan, attach) = match spec.vlan {
            Some(vlan) => ((vlan + place).to_string(), "generic"),
            None => ("\"none\"".to_owned(), "native"),
        };
        // Writing to a String cannot fail.
        write!(
            text,
            "\n[[leg]]\nname = \"{name}\"\ninterface = \"{interface}\"\nvlan = {vlan}\nrole = \"{role}\"\nattach = \"{attach}\"\n"
        )
        .ok();
    }
    text
}

/// IPv6 network of the segment.
const SEGMENT6: &str = "2001:db8:100::/64";

/// What `pair.toml` says for `spec`.
pub fn pair_toml(spec: &PairSpec) -> String {
    let mut text = String::from("format = 1\n");
    let announce: Vec<String> = spec.announce.iter().map(|a| format!("\"{a}\"")).collect();
    let rate = spec
        .announce_rate
        .map(|r| format!(", announce_rate = {r}"))
        .unwrap_or_default();
    let witness = spec
        .witness
        .map(|host| format!(", witness = \"{host}\""))
        .unwrap_or_default();
    // Writing to a String cannot fail.
    writeln!(
        text,
        "ha = {{ vrid = 51, advert_interval = \"{}ms\", auth = \"{}\", preempt = false, announce = [{}]{rate}{witness} }}",
        spec.interval.as_millis(),
        spec.auth,
        announce.join(", ")
    ).ok();
    writeln!(
        text,
        "limits = {{ max_flows = {}, half_open = 16384 }}",
        spec.max_flows
    )
    .ok();
    for gateway in &spec.gateways {
        let length = if gateway.is_ipv4() { 24 } else { 64 };
        writeln!(
            text,
            "\n[[gateway]]\naddress = \"{gateway}/{length}\"\nleg = \"lan\""
        )
        .ok();
        if matches!(gateway, IpAddr::V6(six) if six.is_unicast_link_local()) {
            writeln!(text, "network = \"{SEGMENT6}\"").ok();
        }
    }
    for service in &spec.services {
        write_service(&mut text, service, spec);
    }
    text
}

fn write_service(text: &mut String, service: &Service, spec: &PairSpec) {
    let ports: Vec<String> = service.ports.iter().map(u16::to_string).collect();
    writeln!(
        text,
        "\n[[service]]\nname = \"{}\"\nvip = \"{}\"\nprotocol = \"{}\"\nports = [{}]\nmode = \"{}\"\nscheduler = \"{}\"",
        service.name,
        service.vip,
        service.protocol,
        ports.join(", "),
        service.mode.word(),
        service.scheduler
    ).ok();
    if let IpAddr::V4(vip) = service.vip
        && vip.octets()[..3] != topology::VIP.octets()[..3]
    {
        writeln!(text, "leg = \"{}\"", if spec.two_arms { "wan" } else { "lan" }).ok();
    }
    if service.checked {
        writeln!(
            text,
            "check = {{ type = \"tcp\", interval = \"{}ms\", timeout = \"250ms\", rise = 1, fall = 2 }}",
            spec.check_interval.as_millis()
        )
        .ok();
    }
    if let Some(idle) = service.idle_timeout {
        writeln!(text, "idle_timeout = \"{}s\"", idle.as_secs()).ok();
    }
    if !service.snat.is_empty() {
        let sources: Vec<String> = service.snat.iter().map(|a| format!("\"{a}\"")).collect();
        writeln!(text, "snat = [{}]", sources.join(", ")).ok();
    }
    text.push_str(&service.more);
    text.push_str("server = [\n");
    for server in &service.servers {
        let port = server.port.map(|p| format!(", port = {p}")).unwrap_or_default();
        writeln!(
            text,
            "  {{ name = \"{}\", address = \"{}\"{port}, weight = {} }},",
            server.name, server.address, server.weight
        )
        .ok();
    }
    text.push_str("]\n");
}
