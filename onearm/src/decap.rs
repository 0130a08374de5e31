//! The `onearm-decap` command, for servers of `l3-dsr`: takes packets for the VIPs out of their tunnel while it runs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use ipnet::IpNet;
use nix::net::if_::{if_indextoname, if_nametoindex};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use onearm_dataplane::{AttachMode, AttachedMode, DecapSpec, Decapsulator, LegAttach};

use crate::cli::Exit;

/// How often the interface is looked for, ms.
const LOOK_EVERY_MS: u16 = 1_000;

/// Takes packets of an `l3-dsr` service out of their tunnel (IPIP, IP6IP6, GUE) on a server that has no tunnel device.
///
/// The server still holds the VIPs, on its loopback, and answers clients itself. Runs until SIGTERM or SIGINT, then says
/// what it did.
#[derive(Debug, Parser)]
#[command(name = "onearm-decap", version)]
struct Arguments {
    /// Interface the tunnel's packets come by
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// Address of a service that this server holds; repeat for more
    #[arg(long, value_name = "ADDRESS", required = true)]
    vip: Vec<IpAddr>,
    /// Outer sources: the addresses of the pair's legs, or the prefix of `tunnel_sources`; repeat for more. Without it
    /// everybody who reaches this server can send to the VIPs past the balancer
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    from: Vec<IpNet>,
    /// Takes GUE off, too, at this UDP port
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "6080", value_parser = clap::value_parser!(u16).range(1..))]
    gue_port: Option<u16>,
    /// Where the program runs
    #[arg(long, value_enum, default_value_t = Attach::Auto)]
    attach: Attach,
    /// Print the counters as JSON at the end
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Attach {
    /// In the driver, or in the kernel's stack where that cannot be
    Auto,
    /// In the driver
    Native,
    /// In the kernel's stack
    Generic,
}

/// A prefix, or an address for itself alone.
fn prefix(text: &str) -> Result<IpNet, String> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "neither a prefix nor an address".to_owned())
}

/// Runs the command with the arguments of the process.
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => Exit::Ok.into(),
        Err(error) => {
            eprintln!("onearm-decap: {error:#}");
            Exit::Unhealthy.into()
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block().context("cannot hold signals back")?;
    let name = arguments.interface.as_str();
    let ifindex = if_nametoindex(name).with_context(|| format!("no interface {name}"))?;
    let leg = LegAttach {
        ifindex,
        name: name.to_owned(),
        mode: match arguments.attach {
            Attach::Auto => AttachMode::Auto,
            Attach::Native => AttachMode::Native,
            Attach::Generic => AttachMode::Generic,
        },
    };
    let spec = DecapSpec {
        vips: arguments.vip.clone(),
        from: arguments.from.clone(),
        gue_port: arguments.gue_port,
    };
    let decapsulator = Decapsulator::attach(&leg, &spec)?;
    eprintln!("{}", started(&decapsulator, &spec));
    wait(&signals, ifindex, name)?;
    let counters = decapsulator.counters()?;
    decapsulator.detach()?;
    print!("{}", report(&counters, arguments.json));
    Ok(())
}

fn started(decapsulator: &Decapsulator, spec: &DecapSpec) -> String {
    let attached = decapsulator.attached();
    let mode = match attached.mode {
        AttachedMode::Native => "native",
        AttachedMode::Generic => "generic",
    };
    let vips: Vec<String> = spec.vips.iter().map(IpAddr::to_string).collect();
    let gue = spec
        .gue_port
        .map_or(String::new(), |port| format!(", GUE at port {port}"));
    let anybody = if spec.from.is_empty() {
        "; from anybody: --from names the pair"
    } else {
        ""
    };
    format!(
        "on {} ({mode}) for {}{gue}{anybody}",
        attached.name,
        vips.join(", ")
    )
}

/// Until a signal comes, or the interface has gone.
fn wait(signals: &SigSet, ifindex: u32, name: &str) -> Result<()> {
    let descriptor =
        SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC).context("cannot wait for signals")?;
    loop {
        let mut ready = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, PollTimeout::from(LOOK_EVERY_MS)).context("cannot wait for signals")? > 0 {
            return Ok(());
        }
        // nix answers an empty name for an index that is not there.
        if !if_indextoname(ifindex).is_ok_and(|name| !name.is_empty()) {
            bail!("interface {name} is gone");
        }
    }
}

fn report(counters: &BTreeMap<&'static str, u64>, json: bool) -> String {
    if json {
        return format!("{}\n", serde_json::json!(counters));
    }
    let lines: Vec<String> = counters
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{Arguments, prefix, report};
    use clap::Parser as _;
    use std::collections::BTreeMap;

    fn parsed(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn an_interface_and_a_vip_are_enough() {
        let least = parsed("onearm-decap --interface eth0 --vip 192.0.2.10").expect("good");
        assert!(least.from.is_empty() && least.gue_port.is_none());
        for line in [
            "onearm-decap --interface eth0",
            "onearm-decap --vip 192.0.2.10",
            "onearm-decap --interface eth0 --vip 192.0.2",
            "onearm-decap --interface eth0 --vip 192.0.2.10 --gue-port 0",
            "onearm-decap --interface eth0 --vip 192.0.2.10 --from 192.0.2.0/33",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn sources_are_prefixes_or_addresses_and_gue_has_a_port_of_its_own() {
        let all = parsed(
            "onearm-decap --interface eth0 --vip 192.0.2.10 --vip 2001:db8::10 --from 192.0.2.11 --from 2001:db8::/64 --gue-port --json",
        )
        .expect("good");
        assert_eq!((all.vip.len(), all.gue_port, all.json), (2, Some(6_080), true));
        assert_eq!(
            all.from,
            [prefix("192.0.2.11/32"), prefix("2001:db8::/64")].map(|p| p.expect("good"))
        );
        let other = parsed("onearm-decap --interface eth0 --vip 192.0.2.10 --gue-port 5555").expect("good");
        assert_eq!(other.gue_port, Some(5_555));
    }

    #[test]
    fn counters_are_lines_or_json() {
        let counters = BTreeMap::from([("decapsulated", 7), ("malformed", 0)]);
        assert_eq!(report(&counters, false), "decapsulated 7\nmalformed 0\n");
        assert_eq!(report(&counters, true), "{\"decapsulated\":7,\"malformed\":0}\n");
    }
}
