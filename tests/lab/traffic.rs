//! Real servers and real clients: nginx, curl, iperf3.

use std::{collections::BTreeMap, fs, net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};

use crate::{
    clock,
    measure::echo::Echo,
    process::Process,
    topology::{self, OneArm},
};

/// Port of nginx that no service uses: reached directly.
pub const DIRECT_PORT: u16 = 8088;
/// Ports nginx listens to.
const PORTS: [u16; 4] = [80, 8080, 8081, DIRECT_PORT];

/// One server: nginx with its own configuration and access log, and the UDP echo.
#[derive(Debug)]
pub struct Web {
    short: String,
    access_log: PathBuf,
    _nginx: Process,
    _echo: Echo,
}

/// What a client got from many requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Requests answered by each server, by its name.
    pub by_server: BTreeMap<String, usize>,
    /// Requests that failed.
    pub failed: usize,
    /// First complaint of the client.
    pub complaint: String,
}

impl Answers {
    /// Requests that were answered.
    pub fn good(&self) -> usize {
        self.by_server.values().sum()
    }
}

impl Web {
    /// Starts the server in the namespace `short` (`s1`…, `rem`, or `out` as a host of the outside world).
    ///
    /// # Errors
    /// When nginx does not come up within 5 s.
    pub fn start(lab: &OneArm, short: &str) -> Result<Self> {
        let dir = lab.lab().dir().join(format!("nginx-{short}"));
        fs::create_dir_all(dir.join("html"))?;
        let access_log = dir.join("access.log");
        fs::write(dir.join("html/index.html"), page(short))?;
        fs::write(dir.join("html/who"), format!("{short}\n"))?;
        let conf = dir.join("nginx.conf");
        fs::write(&conf, configuration(short, &dir, lab.has_ipv6()))?;
        let ns = lab.ns(short);
        let error_log = dir.join("error.log");
        let [conf, error, prefix] = [&conf, &error_log, &dir].map(|p| p.display().to_string());
        let mut nginx = ns.spawn(
            &["nginx", "-e", &error, "-p", &prefix, "-c", &conf],
            &[],
            &dir.join("output.log"),
        )?;
        let tag = match short {
            "rem" => 9,
            "out" => 8,
            _ => short.trim_start_matches('s').parse().unwrap_or(0),
        };
        let echo = Echo::start(ns, tag)?;
        clock::wait_for("nginx", Duration::from_secs(5), Duration::from_millis(5), || {
            if !nginx.is_running()? {
                bail!(
                    "nginx of {short} ended: {}",
                    fs::read_to_string(&error_log).unwrap_or_default()
                );
            }
            Ok(ns
                .enter(|| Ok(std::net::TcpStream::connect(("127.0.0.1", 80))?))
                .ok())
        })?;
        Ok(Self {
            short: short.to_owned(),
            access_log,
            _nginx: nginx,
            _echo: echo,
        })
    }

    /// Its short name.
    pub fn short(&self) -> &str {
        &self.short
    }

    /// Lines of its access log: client address, local address and port, status, request.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn log(&self) -> Result<Vec<LogLine>> {
        let text = fs::read_to_string(&self.access_log).context("access log")?;
        Ok(text.lines().filter_map(LogLine::parse).collect())
    }
}

/// One line of a server's access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Address the request came from, as the server saw it.
    pub client: IpAddr,
    /// The server's port.
    pub port: u16,
    /// Path and query that was asked for.
    pub path: String,
}

impl LogLine {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let client = words.next()?.parse().ok()?;
        let port = words.next()?.parse().ok()?;
        let path = words.next()?.to_owned();
        Some(Self { client, port, path })
    }
}

fn configuration(short: &str, dir: &std::path::Path, ipv6: bool) -> String {
    let dir = dir.display();
    let mut listen = PORTS.map(|p| format!("    listen {p} backlog=4096;\n")).concat();
    if ipv6 {
        let six = [80, DIRECT_PORT].map(|p| format!("    listen [::]:{p} ipv6only=on;\n"));
        listen.push_str(&six.concat());
    }
    format!(
        "daemon off;\nuser root;\nworker_processes 1;\npid {dir}/nginx.pid;\nerror_log {dir}/error.log;\n\
         worker_rlimit_nofile 8192;\nevents {{ worker_connections 4096; }}\nhttp {{\n  \
         log_format lab '$remote_addr $server_port $request_uri $status';\n  access_log {dir}/access.log lab;\n  \
         keepalive_timeout 600s;\n  default_type text/html;\n  \
         client_body_temp_path {dir}/t1;\n  proxy_temp_path {dir}/t2;\n  fastcgi_temp_path {dir}/t3;\n  \
         uwsgi_temp_path {dir}/t4;\n  scgi_temp_path {dir}/t5;\n  server {{\n{listen}    \
         root {dir}/html;\n    add_header X-Server {short};\n  }}\n}}\n"
    )
}

fn page(short: &str) -> String {
    let address = topology::address(short);
    format!(
        "<!doctype html>\n<title>{short}</title>\n<h1>Hello from {short}</h1>\n<p>Served by {address} through onearm.</p>\n"
    )
}

/// Starts the servers of the segment and, where wanted, the hosts behind the router.
///
/// # Errors
/// As [`Web::start`].
pub fn start_servers(lab: &OneArm, names: &[&str]) -> Result<Vec<Web>> {
    names.iter().map(|name| Web::start(lab, name)).collect()
}

/// Lets curl, inside `short`, make `count` requests for `http://TARGET/who`, each on a connection of its own.
/// `mark` ends up in the query, so that the servers' logs tell runs apart.
///
/// # Errors
/// When curl cannot be started.
pub fn curl(lab: &OneArm, short: &str, target: &str, count: usize, mark: &str) -> Result<Answers> {
    let url = format!("http://{target}/who?{mark}-[1-{count}]");
    let argv = [
        "curl",
        "-s",
        "-S",
        "--no-progress-meter",
        "--http1.1",
        "-H",
        "Connection: close",
        "--connect-timeout",
        "3",
        "--max-time",
        "6",
        "-w",
        "\n%{http_code}\n",
        &url,
    ];
    let output = lab.ns(short).output(&argv)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut answers = Answers::default();
    let mut body = "";
    let mut seen = 0;
    for line in text.lines().filter(|l| !l.is_empty()) {
        if line.len() == 3 && line.bytes().all(|b| b.is_ascii_digit()) {
            seen += 1;
            if line == "200" && !body.is_empty() {
                *answers.by_server.entry(body.to_owned()).or_default() += 1;
            } else {
                answers.failed += 1;
            }
            body = "";
        } else {
            body = line;
        }
    }
    answers.failed += count.saturating_sub(seen);
    answers.complaint = first_line(&output.stderr);
    Ok(answers)
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text)
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// What iperf3 measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Bits a second the receiver got.
    pub bits_per_second: f64,
    /// Segments sent again.
    pub retransmits: f64,
}

/// Lets iperf3 send for `seconds` from `client` to `target`, where a server of `server` stands behind.
///
/// # Errors
/// When iperf3 fails.
pub fn iperf3(
    lab: &OneArm,
    client: &str,
    server: &str,
    target: &str,
    port: u16,
    seconds: u32,
) -> Result<Throughput> {
    let port = port.to_string();
    let log = lab.lab().dir().join(format!("iperf3-{server}.log"));
    let mut listening = lab
        .ns(server)
        .spawn(&["iperf3", "-s", "-1", "-p", &port], &[], &log)?;
    clock::wait_for(
        "iperf3 to listen",
        Duration::from_secs(5),
        Duration::from_millis(5),
        || {
            let sockets = lab.ns(server).run("ss -Hltn")?;
            Ok(sockets.contains(&format!(":{port} ")).then_some(()))
        },
    )?;
    let seconds_text = seconds.to_string();
    // A connection that stalls would be waited for without end.
    let limit = (seconds + 10).to_string();
    let argv = [
        "timeout",
        &limit,
        "iperf3",
        "-c",
        target,
        "-p",
        &port,
        "-t",
        &seconds_text,
        "-J",
        "--connect-timeout",
        "3000",
    ];
    let output = lab.ns(client).output(&argv)?;
    let value: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("iperf3 printed no JSON")?;
    if let Some(error) = value.get("error") {
        bail!("iperf3: {error}");
    }
    listening.wait(Duration::from_secs(5))?;
    let number = |path: &str| {
        value
            .pointer(path)
            .and_then(serde_json::Value::as_f64)
            .unwrap_or(0.0)
    };
    Ok(Throughput {
        bits_per_second: number("/end/sum_received/bits_per_second"),
        retransmits: number("/end/sum_sent/retransmits"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_reads_back() {
        let line = LogLine::parse("192.168.10.50 80 /who?a-7 200").expect("a line");
        assert_eq!(
            (line.client, line.port),
            ("192.168.10.50".parse().expect("an address"), 80)
        );
        assert_eq!(line.path, "/who?a-7");
        assert!(LogLine::parse("garbage").is_none());
    }
}
