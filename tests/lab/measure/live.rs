//! Live frames: an XDP program builds frames of ever new flows and the kernel sends them, by a test run, out of a port of
//! the switch into a node (`BPF_F_TEST_XDP_LIVE_FRAMES`). Millions a second on one processor.

use std::{
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, PerCpuArray},
    programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp},
};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, bind, send, socket},
};
use onearm_dataplane_common::{
    bench::{self, Bench, MARK, TEMPLATE_WORDS, flow},
    checksum::{fold, halves},
};

use super::capture::link_address;
use crate::{
    clock::{self, MS, Nanos},
    netns::Namespace,
    process, topology,
};

/// The object with `bench_generate` and `bench_sink`; empty where it was not built.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/onearm-bench.o"));

/// Bytes of every frame.
const LEN: u8 = 64;
/// Frames of one turn of the kernel's; a port takes 256 at once.
const BATCH: u32 = 64;

/// Loads the measuring object; its large map is not used here.
pub(crate) fn load(program: &str) -> Result<Ebpf> {
    if OBJECT.is_empty() {
        bail!("no eBPF object is built in: run `make bpf`, then build again");
    }
    let mut loaded = EbpfLoader::new()
        .map_max_entries("LRU", 1)
        .load(OBJECT)
        .context("cannot load the measuring eBPF object")?;
    xdp(&mut loaded, program)?
        .load()
        .with_context(|| format!("cannot load {program}"))?;
    Ok(loaded)
}

pub(crate) fn xdp<'e>(loaded: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp> {
    Ok(loaded
        .program_mut(name)
        .with_context(|| format!("no program {name}"))?
        .try_into()?)
}

/// Frames that a sink has counted.
pub(crate) fn sunk(loaded: &Ebpf) -> Result<u64> {
    let map: PerCpuArray<_, u64> = PerCpuArray::try_from(loaded.map("SUNK").context("no map SUNK")?)?;
    Ok(map.get(&0, 0)?.iter().sum())
}

/// What all frames have in common; the source varies: four flows an address from `base` up.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Destination MAC.
    pub to_mac: [u8; 6],
    /// Source MAC.
    pub from_mac: [u8; 6],
    /// First source address.
    pub base: Ipv4Addr,
    /// Number of flows.
    pub flows: u64,
    /// Which ports they come from: [`onearm_dataplane_common::bench::ports`].
    pub ports: u64,
    /// Destination.
    pub to: (Ipv4Addr, u16),
    /// UDP, or TCP with these flags.
    pub flags: Option<u8>,
    /// Every fourth frame is a blind ACK: of the flow before it, with any number.
    pub blind: bool,
    /// Frames a second; none: as many as may be.
    pub rate: Option<u64>,
    /// Who answers each frame that is [poured](Template::pour); none: nobody.
    pub answers: Option<Answerer>,
}

impl Template {
    /// Datagrams of clients behind the lab's router to node lb1: 16,777,216 flows, as many frames as may be, nobody answers.
    pub fn of_clients(to: (Ipv4Addr, u16)) -> Self {
        Self {
            to_mac: topology::mac("lb1"),
            from_mac: topology::mac("rt"),
            base: Ipv4Addr::new(100, 64, 0, 0),
            flows: 1 << 24,
            ports: bench::ports::APART,
            to,
            flags: None,
            blind: false,
            rate: None,
            answers: None,
        }
    }
}

/// A server whose answers a generator makes.
#[derive(Clone, Copy, Debug)]
pub struct Answerer {
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its address.
    pub address: Ipv4Addr,
}

const ACK: u8 = 16;

fn sum(bytes: &[u8]) -> u32 {
    let total: u32 = bytes
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_ne_bytes([pair[0], pair[1]])))
        .sum();
    (total & 0xffff) + (total >> 16)
}

impl Template {
    /// Frame `n` of the template whose map entry is `bench`.
    fn frame(&self, bench: &Bench, n: u64) -> [u8; LEN as usize] {
        let mut frame = [0; LEN as usize];
        for (bytes, word) in frame.as_chunks_mut::<8>().0.iter_mut().zip(&bench.template) {
            *bytes = word.to_ne_bytes();
        }
        let (addr, port) = flow(bench.ports, bench.base, n);
        frame[26..30].copy_from_slice(&addr.to_ne_bytes());
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[24..26].copy_from_slice(&(!fold(bench.ip_sum + halves(addr))).to_ne_bytes());
        let at = if self.flags.is_some() { 50 } else { 40 };
        let transport = !fold(bench.tcp_sum + halves(addr) + u32::from(port.to_be()));
        frame[at..at + 2].copy_from_slice(&transport.to_ne_bytes());
        frame
    }

    /// The answer to a datagram.
    fn answer(&self, question: &[u8; LEN as usize], by: Answerer) -> [u8; LEN as usize] {
        let mut frame = *question;
        frame[6..12].copy_from_slice(&by.mac);
        frame[26..30].copy_from_slice(&by.address.octets());
        frame[30..34].copy_from_slice(&question[26..30]);
        frame[34..36].copy_from_slice(&question[36..38]);
        frame[36..38].copy_from_slice(&question[34..36]);
        // Both checksums change by the one address that is another.
        let (old, new) = (self.to.0.octets(), by.address.octets());
        for at in [24, 40] {
            let before = u16::from_ne_bytes([frame[at], frame[at + 1]]);
            let [old, new] = [old, new].map(|bytes| halves(u32::from_ne_bytes(bytes)));
            let after = !fold(u32::from(!before) + (0x1_fffe - old) + new);
            frame[at..at + 2].copy_from_slice(&after.to_ne_bytes());
        }
        frame
    }

    /// Sends `count` frames out of `port` of `ns` from a socket, one flow after the other from `first`, at the template's rate:
    /// a slow one, for which a test run could only wait by itself. Each is followed by its answer if there is to be one. When how
    /// many had been sent.
    ///
    /// # Errors
    /// When the port is not there or the kernel refuses.
    pub fn pour(&self, ns: &Namespace, port: &str, first: u64, count: u64) -> Result<Vec<(Nanos, u64)>> {
        let (bench, rate) = (self.bench(0, true), self.rate.unwrap_or(u64::MAX).max(1));
        ns.enter(|| {
            let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), None)?;
            bind(socket.as_raw_fd(), &link_address(port)?)?;
            let begun = clock::now();
            let (mut sent, mut curve) = (0, Vec::new());
            while sent < count {
                let due = (u128::from(clock::now() - begun) * u128::from(rate) / 1_000_000_000 + 1)
                    .min(u128::from(count));
                while u128::from(sent) < due {
                    let frame = self.frame(&bench, first + sent);
                    match send(socket.as_raw_fd(), &frame, MsgFlags::empty()) {
                        Ok(_) => {
                            sent += 1;
                            if let Some(by) = self.answers {
                                send_whole(&socket, &self.answer(&frame, by))?;
                            }
                        }
                        // The port's queue is full.
                        Err(Errno::ENOBUFS) => break,
                        Err(error) => return Err(error.into()),
                    }
                }
                curve.push((clock::now(), sent));
                clock::sleep_until(clock::now() + MS / 5);
            }
            Ok(curve)
        })
    }

    /// Map entry: which frame comes first, and whether the next is one after it or any.
    fn bench(&self, next: u64, sequential: bool) -> Bench {
        let mut frame = [0_u8; LEN as usize];
        frame[0..6].copy_from_slice(&self.to_mac);
        frame[6..12].copy_from_slice(&self.from_mac);
        frame[12..16].copy_from_slice(&[8, 0, 0x45, MARK]);
        let total = u16::from(LEN - 14);
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        let protocol = if self.flags.is_some() { 6 } else { 17 };
        frame[22..24].copy_from_slice(&[64, protocol]);
        frame[30..34].copy_from_slice(&self.to.0.octets());
        frame[36..38].copy_from_slice(&self.to.1.to_be_bytes());
        if let Some(flags) = self.flags {
            frame[46..50].copy_from_slice(&[0x50, flags, 0x20, 0]);
        } else {
            frame[38..40].copy_from_slice(&(total - 20).to_be_bytes());
        }
        let to = u32::from_ne_bytes(self.to.0.octets());
        let pseudo = halves(to) + u32::from(u16::from(protocol).to_be()) + u32::from((total - 20).to_be());
        let mut template = [0; TEMPLATE_WORDS];
        for (word, bytes) in template.iter_mut().zip(frame.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let folded = |total: u32| (total & 0xffff) + (total >> 16);
        let tcp_sum = folded(sum(&frame[34..]) + pseudo);
        frame[47] = ACK;
        Bench {
            template,
            flows: self.flows,
            sequential: u64::from(sequential),
            next,
            base: self.base.into(),
            len: u32::from(LEN),
            vary_destination: 0,
            ip_sum: sum(&frame[14..34]),
            tcp_sum,
            datagrams: u32::from(self.flags.is_none()),
            blind: u32::from(self.blind),
            blind_sum: folded(sum(&frame[34..]) + pseudo),
            count: 0,
            pace: self.rate.map_or(0, |rate| 16_000_000_000 / rate.max(1)),
            due: clock::now(),
            ports: self.ports,
        }
    }
}

/// Sends a frame as soon as the port takes it.
fn send_whole(socket: &OwnedFd, frame: &[u8]) -> Result<()> {
    loop {
        match send(socket.as_raw_fd(), frame, MsgFlags::empty()) {
            Ok(_) => return Ok(()),
            Err(Errno::ENOBUFS) => std::thread::yield_now(),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends frames out of a port.
#[derive(Debug)]
pub struct Generator {
    loaded: Ebpf,
    ns: Namespace,
    ifindex: u32,
    /// Which frame comes next, or the state of the random sequence.
    next: u64,
}

impl Generator {
    /// Out of `port` of `ns`, which must have an XDP program. `seed` tells one run's flows from another's.
    ///
    /// # Errors
    /// When the program cannot be loaded or the port is not there.
    pub fn new(ns: &Namespace, port: &str, seed: u64) -> Result<Self> {
        let loaded = load("bench_generate")?;
        let ifindex = ns.enter(|| Ok(nix::net::if_::if_nametoindex(port)?))?;
        Ok(Self {
            loaded,
            ns: ns.clone(),
            ifindex,
            next: seed,
        })
    }

    /// Which flow comes next when one comes after the other.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Begins anew: at this flow, or with this state of the random sequence.
    pub fn restart(&mut self, next: u64) {
        self.next = next;
    }

    /// Sends frames of the first flows until `sunk` says that all of one turn went through the node.
    ///
    /// # Errors
    /// When none do within 30 s, or the kernel refuses.
    pub fn reach(&mut self, template: &Template, mut sunk: impl FnMut() -> Result<u64>) -> Result<()> {
        let (limit, pause) = (Duration::from_secs(30), Duration::from_millis(100));
        clock::wait_for("frames to be sent on", limit, pause, || {
            let before = sunk()?;
            self.restart(0);
            self.send(template, true, BATCH)?;
            Ok((sunk()? >= before + u64::from(BATCH)).then_some(()))
        })
    }

    /// Sends `count` frames, one flow after the other, or at random. Returns when they are through the node.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn send(&mut self, template: &Template, sequential: bool, count: u32) -> Result<()> {
        let (loaded, ifindex, next) = (&mut self.loaded, self.ifindex, self.next);
        let after = self.ns.enter(|| {
            // Frames are moved on where they are made; else the port overflows.
            process::yield_this_thread()?;
            let mut map: Array<_, Bench> = Array::try_from(loaded.map_mut("BENCH").context("no map BENCH")?)?;
            map.set(0, template.bench(next, sequential), 0)?;
            // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
            let context = [0, u32::from(LEN), 0, ifindex, 0, 0]
                .map(u32::to_ne_bytes)
                .concat();
            let frame = [0_u8; LEN as usize];
            let options = TestRunOptions {
                data_in: Some(&frame),
                ctx_in: Some(&context),
                repeat: count,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            };
            xdp(loaded, "bench_generate")?
                .test_run(options)
                .context("a test run with live frames")?;
            let map: Array<_, Bench> = Array::try_from(loaded.map("BENCH").context("no map BENCH")?)?;
            Ok(map.get(&0, 0)?.next)
        })?;
        self.next = after;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onearm_dataplane_common::bench::ports;

    #[test]
    fn a_frame_that_is_filled_in_has_right_checksums() {
        for flags in [Some(2), Some(16), None] {
            let template = Template {
                to_mac: [2; 6],
                from_mac: [4; 6],
                base: Ipv4Addr::new(100, 64, 0, 0),
                flows: 1000,
                ports: ports::APART,
                to: (Ipv4Addr::new(192, 168, 100, 100), 80),
                flags,
                blind: false,
                rate: None,
                answers: None,
            };
            let frame = template.frame(&template.bench(0, true), 77);
            assert_right(&frame);
            if flags.is_none() {
                let by = Answerer {
                    mac: [6; 6],
                    address: Ipv4Addr::new(192, 168, 100, 11),
                };
                assert_right(&template.answer(&frame, by));
            }
        }
    }

    fn assert_right(frame: &[u8; LEN as usize]) {
        assert_eq!(fold(sum(&frame[14..34])), 0xffff);
        let pseudo =
            sum(&frame[26..34]) + u32::from(u16::from(frame[23]).to_be()) + u32::from(30_u16.to_be());
        assert_eq!(fold(sum(&frame[34..]) + pseudo), 0xffff, "{frame:?}");
    }
}
