//! The one-arm drawing, step by step: which addresses and MACs a connection from outside has on each cable.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::Run;
use crate::{
    clock::MS,
    measure::capture::{Capture, Captured, Direction, Filter},
    node::Kind,
    packet::{ACK, SYN},
    service::Mode,
    switch::Switch,
    topology::{self, OUTSIDE, OneArm, VIP, address, colons, mac},
    traffic,
};

/// One step: on which cable, between which MACs and addresses.
struct Step {
    name: &'static str,
    /// Frames of this step come in through this interface of `rt` or of the switch.
    port: String,
    macs: [[u8; 6]; 2],
    addresses: [Ipv4Addr; 2],
    answer: bool,
}

/// Checks the six steps with one connection from outside.
///
/// # Errors
/// When a capture fails.
pub(super) fn check(run: &mut Run, lab: &OneArm, mode: Mode) -> Result<()> {
    let switch = Capture::start(lab.switch().ns(), None, Filter::Tcp)?;
    let router = Capture::start(lab.ns("rt"), Some("to-out"), Filter::Tcp)?;
    let answers = traffic::curl(lab, "out", &VIP.to_string(), 1, "drawing")?;
    crate::clock::sleep_until(crate::clock::now() + 20 * MS);
    let (switch, router) = (switch.stop()?, router.stop()?);
    switch.write_pcap(
        &lab.lab()
            .dir()
            .join(format!("drawing-{}-switch.pcap", mode.word())),
    )?;
    router.write_pcap(
        &lab.lab()
            .dir()
            .join(format!("drawing-{}-router.pcap", mode.word())),
    )?;
    let word = mode.word();
    let Some(server) = answers.by_server.keys().next().cloned() else {
        run.report.check(
            format!("{word}: the drawing's connection is served"),
            false,
            answers.complaint,
        );
        return Ok(());
    };
    // Health checks of the nodes go over the same switch; they have other addresses.
    let nodes = [address("lb1"), address("lb2")];
    let checks = |c: &Captured| {
        c.frame().and_then(|f| f.ip()).is_some_and(|ip| {
            run.wanted.kind == Kind::Onearm && (nodes.contains(&ip.src) || nodes.contains(&ip.dst))
        })
    };
    let frames: Vec<&Captured> = switch
        .frames
        .iter()
        .filter(|c| c.direction == Direction::In && c.port.starts_with("p-"))
        .filter(|c| !checks(c))
        .collect();
    // Both-NAT by the peers takes the node's own address.
    let snat = if run.wanted.kind == Kind::Onearm {
        VIP
    } else {
        address("lb1")
    };
    let steps = steps(mode, &server, snat);
    let mut foreign = Vec::new();
    let mut counts = vec![0_usize; steps.len()];
    let from_router = router.frames.iter();
    for captured in frames.iter().copied().chain(from_router) {
        let Some(frame) = captured.frame() else { continue };
        let Some(ip) = frame.ip() else { continue };
        let found = steps.iter().position(|s| {
            s.port == location(captured)
                && s.macs == [frame.src_mac(), frame.dst_mac()]
                && s.addresses == [ip.src, ip.dst]
        });
        if let Some(count) = found.and_then(|i| counts.get_mut(i)) {
            *count += 1;
        } else {
            foreign.push(format!(
                "{} {} > {} {} > {}",
                location(captured),
                colons(frame.src_mac()),
                colons(frame.dst_mac()),
                ip.src,
                ip.dst
            ));
        }
    }
    for (step, count) in steps.iter().zip(&counts) {
        run.report.check(
            format!("{word}: {}", step.name),
            *count > 0,
            format!(
                "{} > {}, {} > {}: {count} frames",
                colons(step.macs[0]),
                colons(step.macs[1]),
                step.addresses[0],
                step.addresses[1]
            ),
        );
    }
    foreign.sort();
    foreign.dedup();
    run.report.check(
        format!("{word}: no frame of the connection has other addresses or MACs"),
        foreign.is_empty(),
        foreign.join("; "),
    );
    handshake_order(run, word, &steps, &switch.frames);
    times_to_live(run, word, &steps, &frames);
    Ok(())
}

/// Where a frame was seen: the port of the switch, or the router's side of the client's cable with its direction.
fn location(captured: &Captured) -> String {
    match (captured.port.as_str(), captured.direction) {
        ("to-out", Direction::In) => "client>router".to_owned(),
        ("to-out", Direction::Out) => "router>client".to_owned(),
        (port, _) => port.to_owned(),
    }
}

fn steps(mode: Mode, server: &str, snat: Ipv4Addr) -> [Step; 6] {
    let (lb, rt, srv) = (mac("lb1"), mac("rt"), mac(server));
    let seen_client = if mode == Mode::Dnat { OUTSIDE } else { snat };
    let server_address = address(server);
    let node = Switch::port("lb1");
    let step = |name, port: String, macs, addresses, answer| Step {
        name,
        port,
        macs,
        addresses,
        answer,
    };
    let client_cable = [topology::mac("out"), topology::router_mac("out")];
    [
        step(
            "step 1, client to router",
            "client>router".into(),
            client_cable,
            [OUTSIDE, VIP],
            false,
        ),
        step(
            "step 2, router to node",
            Switch::port("rt"),
            [rt, lb],
            [OUTSIDE, VIP],
            false,
        ),
        step(
            "step 3, node to server",
            node.clone(),
            [lb, srv],
            [seen_client, server_address],
            false,
        ),
        step(
            "step 4, server to node",
            Switch::port(server),
            [srv, lb],
            [server_address, seen_client],
            true,
        ),
        step("step 5, node to router", node, [lb, rt], [VIP, OUTSIDE], true),
        step(
            "step 6, router to client",
            "router>client".into(),
            [client_cable[1], client_cable[0]],
            [VIP, OUTSIDE],
            true,
        ),
    ]
}

/// SYN goes through steps 2 and 3, SYN-ACK through 4 and 5, in this order of time.
fn handshake_order(run: &mut Run, word: &str, steps: &[Step; 6], frames: &[Captured]) {
    let first = |step: &Step| {
        let flags = if step.answer { SYN | ACK } else { SYN };
        frames
            .iter()
            .find(|c| {
                c.direction == Direction::In
                    && c.port == step.port
                    && c.frame().is_some_and(|f| {
                        f.ip().is_some_and(|ip| {
                            ip.flags == flags
                                && [ip.src, ip.dst] == step.addresses
                                && f.src_mac() == step.macs[0]
                        })
                    })
            })
            .map(|c| c.at)
    };
    let times: Vec<_> = steps[1..5].iter().map(first).collect();
    let complete: Option<Vec<_>> = times.iter().copied().collect();
    run.report.check(
        format!("{word}: SYN and SYN-ACK pass the steps in order"),
        complete.is_some_and(|t| t.is_sorted()),
        format!("{} of 4 seen", times.iter().flatten().count()),
    );
}

/// The node takes one from the time to live in each direction.
fn times_to_live(run: &mut Run, word: &str, steps: &[Step; 6], frames: &[&Captured]) {
    let ttl = |step: &Step| {
        frames.iter().find_map(|c| {
            let frame = c.frame()?;
            let ip = frame.ip()?;
            (c.port == step.port && [ip.src, ip.dst] == step.addresses && frame.src_mac() == step.macs[0])
                .then_some(ip.ttl)
        })
    };
    let seen = [ttl(&steps[1]), ttl(&steps[2]), ttl(&steps[3]), ttl(&steps[4])];
    let fell =
        |a: Option<u8>, b: Option<u8>| matches!((a, b), (Some(a), Some(b)) if a.checked_sub(1) == Some(b));
    run.report.check(
        format!("{word}: the node takes one from the time to live each way"),
        fell(seen[0], seen[1]) && fell(seen[2], seen[3]),
        format!("{seen:?}"),
    );
}
