//! Who owns the VIP, asked by ARP every millisecond and seen at the switch's ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::fd::AsRawFd as _,
};

use anyhow::Result;
use nix::sys::socket::{MsgFlags, bind, send};
use socket2::{Domain, Socket, Type};

use super::{
    INSTRUMENT_PRIORITY, Recorder, Stop,
    capture::{Capture, Direction, Filter, Record, link_address},
};
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    packet::arp_request,
    process,
    topology::{self, OneArm},
};

/// Sender addresses the requests rotate over, so that a reply names the request it answers: 192.168.100.200 and up.
const ASKERS: u64 = 50;
/// First of them (last byte).
const FIRST_ASKER: u8 = 200;

/// One question.
#[derive(Clone, Copy, Debug)]
struct Question {
    at: Nanos,
}

/// A running sampler.
#[derive(Debug)]
pub struct Sampler {
    asker: Recorder<Vec<Question>>,
    capture: Capture,
    vip: Ipv4Addr,
    spacing: Nanos,
}

/// An answer: when it came, whose it was, and through which port. Two ports are two owners even under one MAC.
pub type Answer = (Nanos, [u8; 6], String);

/// An owner: port and MAC.
pub type Owner = (String, [u8; 6]);

/// Who answered, and what was announced and advertised.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    /// For each question: when it was asked and which (MAC, port) answered it, in the order of their answers.
    pub answers: Vec<(Nanos, Vec<Answer>)>,
    /// Announcements (gratuitous ARP of any address): time, MAC, port, address.
    pub announcements: Vec<(Nanos, [u8; 6], String, Ipv4Addr)>,
    /// Adverts as they left a node: time, port, priority, interval in centiseconds.
    pub adverts: Vec<(Nanos, String, u8, u16)>,
    /// Everything that was captured.
    pub record: Record,
}

impl Sampler {
    /// Asks for `vip` from the monitor port every `spacing` ns.
    ///
    /// # Errors
    /// When a socket cannot be made.
    pub fn start(lab: &OneArm, vip: Ipv4Addr, spacing: Nanos) -> Result<Self> {
        let capture = Capture::start(lab.switch().ns(), None, Filter::Ownership)?;
        let stop = Stop::default();
        let flag = stop.clone();
        let ns: &Namespace = lab.ns("mon");
        let mac = topology::mac("mon");
        let thread = ns.thread("arp-asker", move || ask(vip, mac, spacing, &flag))?;
        Ok(Self {
            asker: Recorder::new(stop, thread),
            capture,
            vip,
            spacing,
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// When asking or capturing failed.
    pub fn stop(self) -> Result<Owners> {
        let questions = self.asker.finish()?;
        // The last answers are still on their way.
        clock::sleep_until(clock::now() + 5 * MS);
        let record = self.capture.stop()?;
        Ok(Owners::read(&questions, record, self.vip, self.spacing))
    }
}

fn ask(vip: Ipv4Addr, mac: [u8; 6], spacing: Nanos, stop: &Stop) -> Result<Vec<Question>> {
    process::prefer_this_thread(INSTRUMENT_PRIORITY);
    let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
    bind(socket.as_raw_fd(), &link_address("eth0")?)?;
    let mut questions = Vec::new();
    let mut next = clock::now();
    while !stop.is_set() {
        let number = u8::try_from(u64::try_from(questions.len())? % ASKERS)?;
        let sender = Ipv4Addr::new(192, 168, 100, FIRST_ASKER + number);
        let at = clock::now();
        // A question that cannot be sent stays one without answer.
        send(
            socket.as_raw_fd(),
            &arp_request(mac, sender, vip),
            MsgFlags::MSG_DONTWAIT,
        )
        .ok();
        questions.push(Question { at });
        next += spacing;
        if next + 20 * MS < at {
            next = at + spacing;
        }
        clock::sleep_until(next);
    }
    Ok(questions)
}

impl Owners {
    fn read(questions: &[Question], record: Record, vip: Ipv4Addr, spacing: Nanos) -> Self {
        let mut owners = Self {
            answers: questions.iter().map(|q| (q.at, Vec::new())).collect(),
            ..Self::default()
        };
        for captured in record.frames.iter().filter(|f| f.direction == Direction::In) {
            let Some(frame) = captured.frame() else { continue };
            if !captured.port.starts_with("p-") {
                continue;
            }
            if let Some(advert) = frame.advert() {
                let seen = (
                    captured.at,
                    captured.port.clone(),
                    advert.priority,
                    advert.interval_cs,
                );
                owners.adverts.push(seen);
            }
            let Some(arp) = frame.arp() else { continue };
            if arp.is_announcement() {
                let seen = (captured.at, arp.sender_mac, captured.port.clone(), arp.sender);
                owners.announcements.push(seen);
            } else if arp.operation == 2 && arp.sender == vip {
                let number = u64::from(arp.target.octets()[3].wrapping_sub(FIRST_ASKER));
                let index = questions.partition_point(|q| q.at <= captured.at);
                // The youngest question of that sender asked before the answer, not older than a rotation.
                let found = (0..index)
                    .rev()
                    .take(usize::try_from(ASKERS).unwrap_or(0))
                    .find(|i| {
                        u64::try_from(*i).unwrap_or(0) % ASKERS == number
                            && captured.at < questions[*i].at + ASKERS * spacing.max(MS)
                    });
                if let Some((_, seen)) = found.and_then(|i| owners.answers.get_mut(i)) {
                    seen.push((captured.at, arp.sender_mac, captured.port.clone()));
                }
            }
        }
        owners.record = record;
        owners
    }

    /// Most different owners that answered one question in the window.
    pub fn most_at_once(&self, from: Nanos, to: Nanos) -> usize {
        self.window(from, to)
            .map(|(_, seen)| distinct(seen).len())
            .max()
            .unwrap_or(0)
    }

    /// Questions of the window answered by more than one owner: when, and by whom.
    pub fn disputed(&self, from: Nanos, to: Nanos) -> Vec<(Nanos, Vec<Owner>)> {
        self.window(from, to)
            .map(|(at, seen)| (*at, distinct(seen)))
            .filter(|(_, owners)| owners.len() > 1)
            .collect()
    }

    /// Milliseconds of the window in which answers of two owners came, whenever they were asked for: a node that stood still
    /// answers old questions late.
    pub fn shared(&self, from: Nanos, to: Nanos) -> usize {
        let mut slots: BTreeMap<Nanos, BTreeSet<Owner>> = BTreeMap::new();
        for (at, mac, port) in self.answers.iter().flat_map(|(_, seen)| seen) {
            if (from..=to).contains(at) {
                slots.entry(at / MS).or_default().insert((port.clone(), *mac));
            }
        }
        slots.values().filter(|owners| owners.len() > 1).count()
    }

    /// How often the answering owner changed from one answered question to the next.
    pub fn changes(&self, from: Nanos, to: Nanos) -> usize {
        let sequence: Vec<_> = self
            .window(from, to)
            .filter_map(|(_, seen)| seen.first().map(|(_, mac, port)| (mac, port)))
            .collect();
        sequence.windows(2).filter(|w| w.first() != w.last()).count()
    }

    /// Longest time without an answer.
    pub fn longest_silence(&self, from: Nanos, to: Nanos) -> Nanos {
        let mut last = from;
        let mut longest = 0;
        for (at, seen) in self.window(from, to) {
            if !seen.is_empty() {
                longest = longest.max(at - last);
                last = *at;
            }
        }
        longest.max(to.saturating_sub(last))
    }

    /// Port and MAC that answered last before `at`.
    pub fn owner_at(&self, at: Nanos) -> Option<Owner> {
        let (_, seen) = self
            .answers
            .iter()
            .rev()
            .find(|(t, seen)| *t <= at && !seen.is_empty())?;
        seen.first().map(|(_, mac, port)| (port.clone(), *mac))
    }

    /// Announcements per port in the window.
    pub fn announcements_by_port(&self, from: Nanos, to: Nanos) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, _, port, _) in self
            .announcements
            .iter()
            .filter(|(at, ..)| (from..=to).contains(at))
        {
            *counts.entry(port.clone()).or_default() += 1;
        }
        counts
    }

    fn window(&self, from: Nanos, to: Nanos) -> impl Iterator<Item = &(Nanos, Vec<Answer>)> {
        self.answers
            .iter()
            .filter(move |(at, _)| (from..=to).contains(at))
    }
}

/// The different owners among the answers to one question.
fn distinct(answers: &[Answer]) -> Vec<Owner> {
    let owners: BTreeSet<_> = answers
        .iter()
        .map(|(_, mac, port)| (port.clone(), *mac))
        .collect();
    owners.into_iter().collect()
}
