//! Neighbours that change or are forgotten.

use std::time::Duration;

use anyhow::Result;

use super::echo_target;
use crate::{
    clock::{self, MS, ms},
    measure::udp::UdpProber,
    scenario::{Run, stage},
    service::{Mode, PairSpec},
    topology::{Options, SERVERS, VIP, colons, mac},
    traffic,
};

pub(super) fn server_new_mac(run: &mut Run) -> Result<()> {
    let mut spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    for service in &mut spec.services {
        service.servers.retain(|s| s.name == "s1");
    }
    run.with_lab("new-mac", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let prober = UdpProber::start(lab.ns("out"), echo_target(), 2 * MS)?;
        clock::observe(Duration::from_millis(300));
        let changed = clock::now();
        let server = lab.ns("s1");
        server.sysctl("net.ipv4.conf.eth0.arp_notify", "0")?;
        server.run("ip link set eth0 address 02:00:00:00:0f:0a")?;
        clock::observe(Duration::from_secs(10));
        let end = clock::now();
        let answers = traffic::curl(lab, "out", &VIP.to_string(), 20, "new-mac")?;
        let series = prober.stop()?;
        let gap = series.longest_gap(changed - 100 * MS, end);
        run.report.figure("outage_ms", ms(gap));
        run.report.check(
            "new flows reach the server under its new MAC",
            answers.good() == 20,
            format!("{} of 20 {}", answers.good(), answers.complaint),
        );
        run.report.check(
            "running traffic goes on within 8 s",
            gap < 8000 * MS && series.lost(end - 1000 * MS, end) == 0,
            format!("{} ms", ms(gap)),
        );
        pair.scrap()?;
        server.run(&format!("ip link set eth0 address {}", colons(mac("s1"))))?;
        Ok(())
    })
}

pub(super) fn flushed_neighbours(run: &mut Run) -> Result<()> {
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("flushed", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        let prober = UdpProber::start(lab.ns("out"), echo_target(), MS)?;
        let begun = clock::now();
        for _ in 0..5 {
            clock::observe(Duration::from_millis(400));
            lab.ns("lb1").run("ip neigh flush dev eth0")?;
        }
        clock::observe(Duration::from_millis(500));
        let end = clock::now();
        // One SYN that must not need a second one.
        let answers = traffic::curl(lab, "out", &VIP.to_string(), 20, "flushed")?;
        let series = prober.stop()?;
        let gap = series.longest_gap(begun, end);
        run.report.figure("outage_ms", ms(gap));
        run.report.count("lost", series.lost(begun, end));
        run.report.check(
            "five flushes cost at most 20 ms each",
            gap <= 20 * MS,
            format!("{} ms, {} lost", ms(gap), series.lost(begun, end)),
        );
        run.report.check(
            "new flows work",
            answers.good() == 20,
            format!("{} of 20 {}", answers.good(), answers.complaint),
        );
        pair.scrap()
    })
}
