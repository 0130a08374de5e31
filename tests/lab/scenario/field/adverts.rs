//! Announcements that must be repeated, and adverts that must not be believed.

use std::{os::fd::AsRawFd as _, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::socket::{MsgFlags, bind, send};

use super::echo_target;
use crate::{
    clock::{self, MS, ms},
    measure::{
        Stop,
        capture::{self, Direction, Filter},
        owners::Sampler,
    },
    node::{Pair, Role},
    packet::Frame,
    scenario::{Run, failover, stage},
    service::{Mode, PairSpec},
    topology::{GATEWAY, Options, SERVERS, VIP},
    traffic,
};

pub(super) fn announce_refresh(run: &mut Run) -> Result<()> {
    const WINDOW: u32 = 10;
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval());
    run.with_lab("refresh", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = Pair::prepare(run.wanted.kind, lab, &spec, &run.wanted.bin_dir)?;
        for node in &pair.nodes {
            let onearm = node.as_onearm().context("only onearm's file is known here")?;
            let text = crate::node::onearm::pair_toml(&spec);
            onearm.write_pair(&text.replacen("auth = ", "announce_refresh = \"2s\", auth = ", 1))?;
        }
        pair.start()?;
        failover::wait_served(lab, echo_target())?;
        for (active, port, other) in [(0, "p-lb1", "p-lb2"), (1, "p-lb2", "p-lb1")] {
            if active == 1 {
                pair.nodes[0].sigkill_all();
                pair.nodes[0].reap(Duration::from_secs(5))?;
                let patience = pair.patience();
                pair.nodes[1].wait_role(Role::Active, patience)?;
                pair.nodes[0].start()?;
                pair.nodes[0].wait_role(Role::Standby, patience)?;
            }
            // The repeats that follow a take-over are not refreshes.
            clock::observe(Duration::from_secs(6));
            let sampler = Sampler::start(lab, VIP, 100 * MS)?;
            clock::observe(Duration::from_secs(u64::from(WINDOW)));
            let owners = sampler.stop()?;
            for address in [VIP, GATEWAY] {
                let of = |p: &str| {
                    owners
                        .announcements
                        .iter()
                        .filter(|(_, _, q, a)| q == p && *a == address)
                        .count()
                };
                let due = usize::try_from(WINDOW / 2)?;
                run.report.check(
                    format!("{address}: about {due} announcements in {WINDOW} s on {port}, none on {other}"),
                    of(port).abs_diff(due) <= 1 && of(other) == 0,
                    format!("{} and {}", of(port), of(other)),
                );
            }
        }
        pair.scrap()
    })
}

pub(super) fn reflected_adverts(run: &mut Run) -> Result<()> {
    // Signed ones are no adverts with another priority.
    let spec = PairSpec::web_and_echo(Mode::Dnat, run.interval()).without_authentication();
    run.with_lab("reflected", Options::default(), |run, lab| {
        let _servers = traffic::start_servers(lab, &SERVERS)?;
        let mut pair = stage(run, lab, &spec)?;
        for (what, raise) in [("as they are", 0), ("with priority + 1", 1)] {
            let sampler = Sampler::start(lab, VIP, MS)?;
            let stop = Stop::default();
            let flag = stop.clone();
            let mirror = lab
                .switch()
                .ns()
                .thread("mirror", move || reflect("p-lb1", raise, &flag))?;
            let begun = clock::now();
            clock::observe(spec.interval * 20);
            stop.set();
            let sent = mirror
                .join()
                .map_err(|_| anyhow::anyhow!("the mirror panicked"))??;
            clock::observe(spec.interval * 5);
            let end = clock::now();
            let owners = sampler.stop()?;
            let silence = ms(owners.longest_silence(begun, end));
            run.report.check(
                format!("own adverts reflected {what}: the Active stays"),
                sent > 10
                    && owners.changes(begun, end) == 0
                    && owners.most_at_once(begun, end) == 1
                    && owners.owner_at(end).is_some_and(|(port, _)| port == "p-lb1"),
                format!(
                    "{sent} reflected, {} changes, longest silence {silence} ms",
                    owners.changes(begun, end)
                ),
            );
        }
        if let Some(node) = pair.nodes[0].as_onearm() {
            let status = node.ask(&["status"])?;
            let counters = status.pointer("/ha/counters").cloned().unwrap_or_default();
            let counted = counters.as_object().is_some_and(|c| {
                c.iter()
                    .any(|(k, v)| k.contains("own") && v.as_u64().unwrap_or(0) > 0)
            });
            run.report.check("they are counted", counted, counters);
        }
        pair.scrap()
    })
}

/// Sends every advert that comes in from `port` back out of it, with its priority raised. Runs until told to stop and
/// gives the number.
fn reflect(port: &str, raise: u8, stop: &Stop) -> Result<usize> {
    let socket = capture::open(Some(port), Filter::Ownership)?;
    bind(socket.as_raw_fd(), &capture::link_address(port)?)?;
    let offset = clock::realtime_offset();
    let mut buffer = [0; 256];
    let mut sent = 0;
    while !stop.is_set() {
        while let Some(got) = capture::receive(&socket, &mut buffer, offset)? {
            let Some(bytes) = buffer.get_mut(..got.len.min(256)) else {
                continue;
            };
            let Some(advert) = Frame::new(bytes).and_then(|f| f.advert()) else {
                continue;
            };
            if got.direction == Direction::In {
                clock::sleep_until(got.at + 5 * MS);
                if let Some(raised) = advert.priority.checked_add(raise) {
                    raise_priority(bytes, raised);
                }
                send(socket.as_raw_fd(), bytes, MsgFlags::empty()).ok();
                sent += 1;
            }
        }
        clock::sleep_until(clock::now() + MS);
    }
    Ok(sent)
}

/// Writes the priority of the advert in `frame` (no IP options) and mends its checksum (RFC 1624).
fn raise_priority(frame: &mut [u8], priority: u8) {
    let Some(advert) = frame.get_mut(34..42) else {
        return;
    };
    let old = u32::from(advert[2]);
    let new = u32::from(priority);
    let sum = u32::from(u16::from_be_bytes([advert[6], advert[7]]));
    // The priority is the high byte of its word.
    let mut mended = (!sum & 0xffff) + (!(old << 8) & 0xffff) + (new << 8);
    while mended > 0xffff {
        mended = (mended & 0xffff) + (mended >> 16);
    }
    let [high, low] = u16::try_from(!mended & 0xffff).unwrap_or(0).to_be_bytes();
    advert[2] = priority;
    advert[6] = high;
    advert[7] = low;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Internet checksum over `bytes`.
    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = bytes
            .chunks(2)
            .map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).expect("folded")
    }

    #[test]
    fn a_raised_priority_keeps_the_checksum_right() {
        let mut frame = vec![0; 34];
        frame.extend([0x31, 51, 150, 1, 0, 100, 0, 0, 192, 168, 100, 100]);
        let right = checksum(&frame[34..]).to_be_bytes();
        frame[40..42].copy_from_slice(&right);
        raise_priority(&mut frame, 151);
        assert_eq!(frame[36], 151);
        assert_eq!(checksum(&frame[34..]), 0);
    }
}
