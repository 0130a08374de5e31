//! The programs under test, loaded with the maps of a small pair.
#![expect(unsafe_code, reason = "flows are written through the mapped flow table")]

use crate::frames::Template;
use anyhow::{Context, bail, ensure};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, ProgramArray, lpm_trie::Key, lpm_trie::LpmTrie},
    programs::{TestRun, TestRunOptions, Xdp},
};
use onearm_dataplane_common::{
    addr::{Addr, Addr4, Address},
    bench::{Bench, flow, ports},
    counter::Counter,
    direct::is_direct,
    flow::{Bucket, Bucket4, FlowEntry, FlowEntry4, flags, hop, seen},
    maps::{
        LastHop, Leg, LegKey, LegSlot, Mac, NextHop, Node, Owned, OwnedKey, Server, Service, ServiceKey,
        SnatPool, WAYS, mode, owned, proto, scheduler, server,
    },
    phase::{MAIN, PHASES},
    table::{self, FlowMemory, Geometry, Scan},
};
use std::{
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};

static PROGRAMS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/onearm-xdp.o"));
static MEASURING: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/onearm-bench.o"));

/// Interface of a test run: loopback.
const IFINDEX: u32 = 1;
const LEG_MAC: Mac = [2, 0, 0, 0, 0, 1];
const ROUTER_MAC: Mac = [2, 0, 0, 0, 0, 254];
const SERVER_MAC: Mac = [2, 0, 0, 0, 1, 1];
const VIP: Addr4 = u32::from_ne_bytes([192, 168, 100, 100]);
const PORT: u16 = 80;
const LEG_ADDR: Addr4 = u32::from_ne_bytes([192, 168, 100, 2]);
/// First client address, native order.
const CLIENTS: u32 = 0x0a80_0000;
/// First source address of established both-nat flows, native order.
const SOURCES: u32 = 0x6440_0000;
/// Servers and source addresses of new flows, so that source ports do not run out.
const SERVERS: u16 = 16;
const POOLS: u16 = 64;
/// Index of the clients' router into `LAST_HOPS`.
const ROUTER: u32 = 0;
/// Packets of one measurement.
const PACKETS: u32 = 1_000_000;
const XDP_TX: u32 = 3;

fn server_addr(index: u16) -> Addr4 {
    u32::from(Ipv4Addr::new(192, 168, 101, index.to_be_bytes()[1])).to_be()
}

fn xdp<'e>(ebpf: &'e mut Ebpf, name: &str) -> anyhow::Result<&'e mut Xdp> {
    Ok(ebpf
        .program_mut(name)
        .with_context(|| format!("program {name}"))?
        .try_into()?)
}

fn array<'e, V: Pod>(ebpf: &'e mut Ebpf, name: &str) -> anyhow::Result<Array<&'e mut MapData, V>> {
    Ok(Array::try_from(
        ebpf.map_mut(name).with_context(|| format!("map {name}"))?,
    )?)
}

fn load(object: &[u8], map: &str, entries: u32) -> anyhow::Result<Ebpf> {
    ensure!(!object.is_empty(), "built without eBPF objects; run `make bpf`");
    let mut ebpf = EbpfLoader::new()
        .map_max_entries(map, entries)
        .load(object)
        .context("loading the eBPF object (root is needed)")?;
    for (_, program) in ebpf.programs_mut() {
        if let Ok(program) = <&mut Xdp>::try_from(program) {
            program.load()?;
        }
    }
    Ok(ebpf)
}

/// The wrapper, with one program to call.
struct Wrapper {
    ebpf: Ebpf,
    subject: ProgramArray<MapData>,
}

impl Wrapper {
    fn load(lru_entries: u32) -> anyhow::Result<Self> {
        let mut ebpf = load(MEASURING, "LRU", lru_entries)?;
        let subject = ProgramArray::try_from(ebpf.take_map("SUBJECT").context("map SUBJECT")?)?;
        Ok(Self { ebpf, subject })
    }

    /// ns per packet.
    fn run(&mut self, bench: &Bench, packets: u32) -> anyhow::Result<f64> {
        array(&mut self.ebpf, "BENCH")?.set(0, *bench, 0)?;
        let frame = [0u8; 64];
        let options = TestRunOptions {
            data_in: Some(&frame),
            repeat: packets,
            ..TestRunOptions::default()
        };
        let result = xdp(&mut self.ebpf, "bench_wrapper")?.test_run(options)?;
        ensure!(
            result.return_value == XDP_TX,
            "a frame was not sent (verdict {})",
            result.return_value
        );
        Ok(result.duration.as_secs_f64() * 1e9)
    }
}

/// Parse and transmit, alone and with a kernel LRU hash.
pub(crate) struct Reference {
    wrapper: Wrapper,
    flows: u32,
}

impl Reference {
    /// The LRU hash has at least four times as many entries as there are flows.
    pub(crate) fn load(flows: u32) -> anyhow::Result<Self> {
        let wrapper = Wrapper::load((4 * flows).next_power_of_two())?;
        Ok(Self { wrapper, flows })
    }

    fn run(&mut self, program: &str, bench: &Bench, packets: u32) -> anyhow::Result<f64> {
        let fd = xdp(&mut self.wrapper.ebpf, program)?.fd()?.try_clone()?;
        self.wrapper.subject.set(0, &fd, 0)?;
        self.wrapper.run(bench, packets)
    }

    fn frames(&self, sequential: bool) -> Bench {
        client(0x10).bench(self.flows, sequential)
    }

    pub(crate) fn wrapper(&mut self) -> anyhow::Result<f64> {
        self.run("bench_null", &self.frames(false), PACKETS)
    }

    pub(crate) fn parse(&mut self) -> anyhow::Result<f64> {
        self.run("bench_parse", &self.frames(false), PACKETS)
    }

    /// Puts every flow into the LRU hash.
    pub(crate) fn warm(&mut self) -> anyhow::Result<()> {
        self.run("bench_lru", &self.frames(true), self.flows).map(|_| ())
    }

    pub(crate) fn lru(&mut self) -> anyhow::Result<f64> {
        self.run("bench_lru", &self.frames(false), PACKETS)
    }

    /// Every frame a new key.
    pub(crate) fn lru_new(&mut self, round: usize) -> anyhow::Result<f64> {
        let mut frames = self.frames(true);
        frames.base = CLIENTS.wrapping_add(0x0400_0000 * (u32::try_from(round)? + 1));
        let cost = self.run("bench_lru", &frames, self.flows)?;
        self.warm()?;
        Ok(cost)
    }
}

/// Frames of clients to the VIP.
fn client(flags: u8) -> Template {
    Template {
        to_mac: LEG_MAC,
        from_mac: ROUTER_MAC,
        fixed: (VIP, PORT),
        base: CLIENTS,
        vary_destination: false,
        flags,
    }
}

/// The product's programs with one service.
pub(crate) struct Subject {
    wrapper: Wrapper,
    ebpf: Ebpf,
    _phases: ProgramArray<MapData>,
    memory: Memory,
    flows: u32,
    mode: u8,
}

impl Subject {
    /// A table with room for twice the flows, and one service of the mode.
    pub(crate) fn load(flows: u32, mode: u8) -> anyhow::Result<Self> {
        let buckets = (flows / 4).next_power_of_two();
        let mut ebpf = load(PROGRAMS, "FLOWS4", buckets)?;
        let mut phases = ProgramArray::try_from(ebpf.take_map("PHASES").context("map PHASES")?)?;
        for (index, name) in PHASES {
            phases.set(index, xdp(&mut ebpf, name)?.fd()?, 0)?;
        }
        configure(&mut ebpf, buckets, mode)?;
        let Some(Map::Array(table)) = ebpf.map("FLOWS4") else {
            bail!("map FLOWS4")
        };
        let memory = Memory::map(table.fd(), buckets)?;
        let mut wrapper = Wrapper::load(1)?;
        wrapper.subject.set(0, xdp(&mut ebpf, MAIN)?.fd()?, 0)?;
        Ok(Self {
            wrapper,
            ebpf,
            _phases: phases,
            memory,
            flows,
            mode,
        })
    }

    /// Writes every flow into the table as established.
    pub(crate) fn establish(&mut self) -> anyhow::Result<()> {
        for n in 0..u64::from(self.flows) {
            let geometry = self.memory.geometry();
            let inserted = if is_direct(self.mode) {
                let flow = single(n, self.mode);
                table::insert_single::<Addr4, Memory>(
                    &self.memory,
                    &geometry,
                    1,
                    &flow,
                    u32::try_from(WAYS)?,
                    &mut Scan::default(),
                )
            } else {
                let (forward, reply) = pair(n, self.mode);
                table::insert_pair::<Addr4, Memory>(&self.memory, &geometry, 1, &forward, &reply).map(drop)
            };
            if let Err(reason) = inserted {
                bail!("flow {n} of {}: {reason:?}", self.flows);
            }
        }
        Ok(())
    }

    /// Clients' packets of established flows.
    pub(crate) fn requests(&mut self) -> anyhow::Result<f64> {
        let frames = client(0x10).bench(self.flows, false);
        self.wrapper.run(&frames, PACKETS)
    }

    /// Servers' packets of established flows, where they come by.
    pub(crate) fn replies(&mut self) -> anyhow::Result<Option<f64>> {
        if is_direct(self.mode) {
            return Ok(None);
        }
        let template = Template {
            from_mac: SERVER_MAC,
            fixed: (server_addr(0), PORT),
            base: if self.mode == mode::BOTH_NAT {
                SOURCES
            } else {
                CLIENTS
            },
            vary_destination: true,
            ..client(0x10)
        };
        self.wrapper
            .run(&template.bench(self.flows, false), PACKETS)
            .map(Some)
    }

    /// SYNs, every one a new flow, into an empty table.
    pub(crate) fn new_flows(&mut self) -> anyhow::Result<f64> {
        self.memory.clear();
        array(&mut self.ebpf, "HALF_OPEN")?.set(0, 0u64, 0)?;
        let before = self.created()?;
        let frames = client(0x02).bench(self.flows, true);
        let cost = self.wrapper.run(&frames, self.flows)?;
        let made = self.created()? - before;
        ensure!(
            made == u64::from(self.flows),
            "only {made} of {} flows were made",
            self.flows
        );
        Ok(cost)
    }

    fn created(&mut self) -> anyhow::Result<u64> {
        let map = self.ebpf.map("COUNTERS").context("map COUNTERS")?;
        let counters: PerCpuArray<&MapData, u64> = PerCpuArray::try_from(map)?;
        Ok(counters.get(&Counter::FlowCreated.index(), 0)?.iter().sum())
    }
}

fn configure(ebpf: &mut Ebpf, buckets: u32, mode: u8) -> anyhow::Result<()> {
    let node = Node {
        flow_hash_key: KEY,
        pair_hash_key: [3, 4],
        flow_buckets: buckets,
        half_open_budget: u32::MAX,
        half_open_ticks: 75,
        closing_ticks: 450,
        dsr_ways: u32::try_from(WAYS)?,
        incarnation_base: 1 << 56,
        ..Node::default()
    };
    array(ebpf, "NODE")?.set(0, node, 0)?;
    array(ebpf, "LEASE")?.set(0, u64::MAX - 1, 0)?;
    let leg = Leg {
        mac: LEG_MAC,
        mtu: 1_500,
        addr: Addr::v4(LEG_ADDR),
        ..Leg::default()
    };
    let key = LegKey {
        ifindex: IFINDEX,
        ..LegKey::default()
    };
    let slot = LegSlot {
        leg,
        key: key.word(),
        ..LegSlot::default()
    };
    array(ebpf, "LEGS")?.set(key.slots()[0], slot, 0)?;
    let mut owns: HashMap<_, OwnedKey, Owned> =
        HashMap::try_from(ebpf.map_mut("OWNED").context("map OWNED")?)?;
    owns.insert(
        OwnedKey {
            addr: Addr::v4(VIP),
            slot: 0,
        },
        Owned {
            kinds: owned::SERVICE,
            ..Owned::default()
        },
        0,
    )?;
    let key = ServiceKey {
        slot: 0,
        proto: proto::TCP,
        addr: Addr::v4(VIP).bytes(),
        port: PORT.to_be_bytes(),
    };
    let mut services: LpmTrie<_, ServiceKey, u32> =
        LpmTrie::try_from(ebpf.map_mut("SERVICES").context("map SERVICES")?)?;
    services.insert(&Key::new(160, key), 0, 0)?;
    let service = Service {
        table: u64::from(SERVERS) << 32,
        mode,
        scheduler: scheduler::MAGLEV,
        snat_len: POOLS,
        idle_ticks: u32::MAX / 4,
        ..Service::default()
    };
    array(ebpf, "SERVICE")?.set(0, service, 0)?;
    for index in 0..SERVERS {
        let flags = server::USED | server::UP;
        let server = Server {
            addr: Addr::v4(server_addr(index)),
            net: 1,
            next_hop: 1,
            flags,
            ..Server::default()
        };
        array(ebpf, "SERVERS")?.set(u32::from(index), server, 0)?;
    }
    for word in 0..u32::from(SERVERS) / 4 {
        let four = (0..4).fold(0, |w, i| w | u64::from(4 * word + i) << (16 * i));
        array(ebpf, "SCHED")?.set(word, four, 0)?;
    }
    for index in 0..u32::from(POOLS) {
        let pool = SnatPool {
            addr: Addr::v4((0x6450_0000 + index).to_be()),
            first: 32_768,
            last: 49_151,
        };
        array(ebpf, "SNAT_POOLS")?.set(index, pool, 0)?;
    }
    let hop = |mac| NextHop {
        mac,
        ifindex: IFINDEX,
        valid: 1,
        mtu: 1_500,
        ..NextHop::default()
    };
    array(ebpf, "NEXT_HOPS")?.set(1, hop(SERVER_MAC), 0)?;
    know_router(ebpf)
}

/// User space gives resolved neighbours an index before their first packet.
fn know_router(ebpf: &mut Ebpf) -> anyhow::Result<()> {
    let last = LastHop {
        mac: ROUTER_MAC,
        ifindex: IFINDEX,
        mtu: 1_500,
        ..LastHop::default()
    };
    array(ebpf, "LAST_HOPS")?.set(ROUTER, last, 0)?;
    let mut index: HashMap<_, LastHop, u32> =
        HashMap::try_from(ebpf.map_mut("LAST_HOP_INDEX").context("map LAST_HOP_INDEX")?)?;
    index.insert(last, ROUTER, 0)?;
    Ok(())
}

/// The client's entry of established flow `n`, with the source the server sees.
fn forward(n: u64, mode: u8, source: u32) -> FlowEntry4 {
    let (client, port) = flow(ports::APART, CLIENTS, n);
    FlowEntry4 {
        saddr: client,
        daddr: VIP,
        sport: port.to_be(),
        dport: PORT.to_be(),
        proto: proto::TCP,
        flags: mode << flags::MODE_SHIFT,
        own: seen::OPENED | seen::CONFIRMED,
        other: seen::OPENED,
        new_saddr: source,
        new_daddr: server_addr(0),
        new_sport: port.to_be(),
        hop: 1,
        idle_ticks: u32::MAX / 4,
        incarnation: 1 << 56 | (n + 1),
        ..FlowEntry4::default()
    }
}

/// Both entries of established flow `n`.
fn pair(n: u64, mode: u8) -> (FlowEntry, FlowEntry) {
    let (client, port) = flow(ports::APART, CLIENTS, n);
    let source = if mode == mode::BOTH_NAT {
        flow(ports::APART, SOURCES, n).0
    } else {
        client
    };
    let forward = FlowEntry4 {
        new_dport: PORT.to_be(),
        ..forward(n, mode, source)
    };
    let key = forward.reply_key();
    let reply = FlowEntry4 {
        saddr: key.saddr,
        daddr: key.daddr,
        sport: key.sport,
        dport: key.dport,
        flags: forward.flags | flags::REPLY,
        own: forward.other,
        other: forward.own,
        new_saddr: VIP,
        new_daddr: client,
        new_sport: PORT.to_be(),
        new_dport: port.to_be(),
        hop: hop::LAST | ROUTER,
        ..forward
    };
    (forward.wide(), reply.wide())
}

/// The entry of established flow `n` of a server that answers its clients itself.
fn single(n: u64, mode: u8) -> FlowEntry {
    let source = if mode == mode::DSR {
        flow(ports::APART, CLIENTS, n).0
    } else {
        LEG_ADDR
    };
    forward(n, mode, source).wide()
}

const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

/// The mapped flow table.
struct Memory {
    start: *mut Bucket4,
    buckets: u32,
}

impl Memory {
    fn map(fd: impl AsFd, buckets: u32) -> anyhow::Result<Self> {
        let len = buckets as usize * size_of::<Bucket4>();
        // SAFETY: a new mapping of a whole map, checked below.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("mapping FLOWS4");
        }
        Ok(Self {
            start: start.cast(),
            buckets,
        })
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            key: KEY,
            buckets: self.buckets,
        }
    }

    fn clear(&mut self) {
        // SAFETY: no program runs; zero is an empty bucket.
        unsafe { self.start.write_bytes(0, self.buckets as usize) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let len = self.buckets as usize * size_of::<Bucket4>();
        // SAFETY: mapped by `map`, not used afterwards. Nothing can be done about a failure.
        unsafe { libc::munmap(self.start.cast(), len) };
    }
}

// SAFETY: pointers into the mapping; std atomics on aligned words.
unsafe impl FlowMemory for Memory {
    const MORTAL: bool = false;

    fn bucket<A: Address>(&self, index: u32) -> Option<*mut Bucket<A>> {
        // SAFETY: in bounds; only the IPv4 table is measured.
        (index < self.buckets && !A::V6).then(|| unsafe { self.start.add(index as usize) }.cast())
    }
    unsafe fn exchange(&self, word: *mut u64, expected: u64, new: u64) -> u64 {
        // SAFETY: by contract an aligned word of a bucket.
        match unsafe { AtomicU64::from_ptr(word) }.compare_exchange(expected, new, SeqCst, SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }
    unsafe fn add(&self, word: *mut u64, n: u64) {
        // SAFETY: by contract an aligned word of a bucket.
        unsafe { AtomicU64::from_ptr(word) }.fetch_add(n, SeqCst);
    }
}
