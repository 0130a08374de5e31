//! What each cell does.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};

use super::{
    DEAF_PORT, LATE_PORT, PROHIBITED_PORT,
    table::{Feature, Protocol},
    vip,
};
use crate::{
    clock,
    measure::echo::{self, Echo},
    process::Process,
    service::Mode,
    topology::{self, Family, OneArm, SERVERS},
};

/// Both ends of the checks, in Python because they set socket options and send packets of their own making.
const PEER: &str = include_str!("peer.py");
/// Bytes of the page that is too big for one packet many times over.
const BIG_PAGE: usize = 200_000;

/// A lab with a serving pair.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    lab: &'a OneArm,
    mode: Mode,
    family: Family,
    peer: String,
    _echoes: Vec<Echo>,
}

impl<'a> Bench<'a> {
    /// Starts what the servers need beside nginx and the echo.
    pub(super) fn new(lab: &'a OneArm, mode: Mode, family: Family) -> Result<Self> {
        let file = lab.lab().dir().join("peer.py");
        fs::write(&file, PEER)?;
        for server in SERVERS {
            let page = lab.lab().dir().join(format!("nginx-{server}/html/big"));
            fs::write(page, vec![b'x'; BIG_PAGE])?;
        }
        let mut echoes = Vec::new();
        // The echo at all IPv4 addresses answers from the server's own.
        if mode.is_direct() || family == Family::V6 {
            for (server, tag) in SERVERS.into_iter().zip(1..) {
                let address = (server_address(mode, family, server), echo::PORT).into();
                echoes.push(Echo::bound(lab.ns(server), address, tag)?);
            }
        }
        Ok(Self {
            lab,
            mode,
            family,
            peer: file.display().to_string(),
            _echoes: echoes,
        })
    }

    /// Does what belongs to a cell; an error says what was wrong.
    pub(super) fn check(&self, protocol: Protocol, feature: Feature) -> Result<()> {
        match (feature, protocol) {
            (Feature::Data | Feature::Vlan, Protocol::Tcp) => {
                self.client("page", 80)?;
                self.curl("who", 0, "a page")
            }
            (Feature::Data | Feature::Vlan, Protocol::Udp) => self.client("echo", echo::PORT),
            (Feature::IcmpError, Protocol::Tcp) => self.client("prohibited", PROHIBITED_PORT),
            (Feature::IcmpError, Protocol::Udp) => {
                self.client("refused", DEAF_PORT)?;
                self.error_to_the_server()
            }
            // Requests of several segments, cut by the router, because their sender allows it.
            (Feature::Fragments, Protocol::Tcp) => {
                let (client, router) = (self.lab.ns("out"), self.lab.ns("rt"));
                client.sysctl("net.ipv4.ip_no_pmtu_disc", "1")?;
                router.run("ip link set eth0 mtu 1200")?;
                let outcome = self.curl("who", 4000, "a page for a request in fragments");
                router.run("ip link set eth0 mtu 1500")?;
                client.sysctl("net.ipv4.ip_no_pmtu_disc", "0")?;
                outcome
            }
            (Feature::Fragments, Protocol::Udp) => self.client("big-echo", echo::PORT),
            // The client's own link is narrower than it thinks: the router tells the server, by way of the pair.
            (Feature::TooBig, protocol) => {
                self.curl("who", 4000, "a page for a request of full packets")?;
                self.lab.ns("rt").run("ip link set to-out mtu 1300")?;
                let outcome = match protocol {
                    Protocol::Tcp => self.curl("big", 0, "a page bigger than the link"),
                    Protocol::Udp => self.client("narrow-echo", echo::PORT),
                };
                self.lab.ns("rt").run("ip link set to-out mtu 1500")?;
                self.forget_sizes()?;
                outcome
            }
            (Feature::Options, Protocol::Tcp) => self.client("page-with-options", 80),
            (Feature::Options, Protocol::Udp) => self.client("echo-with-options", echo::PORT),
        }
    }

    /// One end of a check, in the outside client's place.
    fn client(&self, what: &str, port: u16) -> Result<()> {
        let (vip, port) = (vip(self.family).to_string(), port.to_string());
        let argv = ["python3", &self.peer, what, &vip, &port];
        let output = self.lab.ns("out").output(&argv)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{what}: {}",
            said.lines().last().unwrap_or("no word")
        );
        Ok(())
    }

    /// curl gets the page `path` with a request that is `padding` bytes longer than needed.
    fn curl(&self, path: &str, padding: usize, what: &str) -> Result<()> {
        let target = SocketAddr::from((vip(self.family), 80));
        let url = format!("http://{target}/{path}?{}", "p".repeat(padding));
        let argv = [
            "curl",
            "-s",
            "-S",
            "-g",
            "--max-time",
            "8",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{size_download}",
            &url,
        ];
        let output = self.lab.ns("out").output(&argv)?;
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        let wanted = match path {
            "big" => format!("200 {BIG_PAGE}"),
            _ => "200 3".to_owned(),
        };
        ensure!(
            output.status.success() && found == wanted,
            "{what}: status and bytes {found}, {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }

    /// The client is gone when the answer comes; the server's socket must hear of it.
    fn error_to_the_server(&self) -> Result<()> {
        let port = LATE_PORT.to_string();
        let mut servers: Vec<Process> = Vec::new();
        for server in SERVERS {
            let address = server_address(self.mode, self.family, server).to_string();
            let log = self.lab.lab().dir().join(format!("late-{server}.log"));
            servers.push(self.lab.ns(server).spawn(
                &["python3", &self.peer, "jilted", &address, &port],
                &[],
                &log,
            )?);
        }
        let patience = Duration::from_secs(10);
        let pause = Duration::from_millis(20);
        let all = |word: &str| {
            servers
                .iter()
                .map(|s| fs::read_to_string(s.log()).unwrap_or_default())
                .filter(|text| text.contains(word))
                .count()
        };
        clock::wait_for("the late servers to listen", patience, pause, || {
            Ok((all("ready") == servers.len()).then_some(()))
        })?;
        self.client("hang-up", LATE_PORT)?;
        clock::wait_for(
            "a server to hear of its client's port unreachable",
            patience,
            pause,
            || Ok((all("refused") == 1).then_some(())),
        )
    }

    /// Makes everybody forget which packets were too big.
    fn forget_sizes(&self) -> Result<()> {
        for short in ["s1", "s2", "s3", "out", "rt"] {
            self.lab.ns(short).run("ip route flush cache")?;
            self.lab.ns(short).run("ip -6 route flush cache")?;
        }
        Ok(())
    }
}

/// Where a server must listen so that its answers have the right source.
fn server_address(mode: Mode, family: Family, server: &str) -> std::net::IpAddr {
    match (mode.is_direct(), family) {
        (true, _) => vip(family),
        (false, Family::V4) => topology::address(server).into(),
        (false, Family::V6) => topology::address6(server).into(),
    }
}
