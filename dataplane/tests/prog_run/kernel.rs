//! The object of this build, loaded.

use crate::support::{Engine, Permission, Setup, Verdict, frames::v6, setup::IFINDEX};
use aya::{
    Ebpf, EbpfLoader, Pod,
    maps::{
        Array, HashMap, Map, MapData, PerCpuArray, PerCpuValues, ProgramArray, Queue, RingBuf,
        lpm_trie::{Key, LpmTrie},
        xdp::DevMap,
    },
    programs::{SchedClassifier, TestRun, TestRunOptions, Xdp},
    util::nr_cpus,
};
use onearm_dataplane_common::{
    counter::{COUNTERS, Counter},
    event::PACE_SLOTS,
    flow::{Bucket4, Bucket6, FlowEntry},
    maps::{
        FragmentKey, LEG_SLOTS, LastHop, Leg, LegKey, LegSlot, Limits, MAX_SERVICES, Remembered, SOURCES_ROW,
        Stats,
    },
    permission::{ARMED_BASE, RELAYING_BASE, YIELDING},
    phase::{EGRESS, MAIN, PHASES},
    refusal::{METERS, Meter},
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/onearm-xdp.o"));

/// Services and servers of a setup have indexes below this.
const MOST_INDEXES: u32 = 40;

/// Both flow tables.
pub type Table = (Vec<Bucket4>, Vec<Bucket6>);

/// Programs and maps of one load.
pub struct Kernel {
    ebpf: Ebpf,
    buckets: u32,
    /// `SOURCES` is large, and few cases count in it.
    sources_used: bool,
    /// The kernel empties a program array when its last descriptor is closed.
    phases: ProgramArray<MapData>,
    tells: RingBuf<MapData>,
}

impl Kernel {
    /// Loads every program. Panics, naming what is missing, without root or without the object.
    pub fn new() -> Self {
        assert!(
            !OBJECT.is_empty(),
            "built without eBPF objects; run `make setup` and `make bpf` first"
        );
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("FLOWS4", 1024)
            .map_max_entries("FLOWS6", 1024)
            .load(OBJECT)
            .expect("maps (needs root)");
        for (_, program) in ebpf.programs_mut() {
            if let Ok(xdp) = <&mut Xdp>::try_from(program) {
                xdp.load().expect("the verifier accepts every program");
            }
        }
        let gate =
            <&mut SchedClassifier>::try_from(ebpf.program_mut(EGRESS).expect(EGRESS)).expect("classifier");
        gate.load().expect("the verifier accepts the egress gate");
        let mut phases =
            ProgramArray::try_from(ebpf.take_map("PHASES").expect("PHASES")).expect("program array");
        for (index, name) in PHASES {
            let fd = <&mut Xdp>::try_from(ebpf.program_mut(name).expect(name))
                .expect("xdp")
                .fd()
                .expect("loaded");
            phases.set(index, fd, 0).expect("tail call");
        }
        let tells = RingBuf::try_from(ebpf.take_map("FLOW_TELLS").expect("FLOW_TELLS")).expect("ring");
        let mut ports = DevMap::try_from(ebpf.map_mut("TX_PORTS").expect("TX_PORTS")).expect("devmap");
        ports.set(2, IFINDEX, None, 0).expect("loopback");
        Self {
            ebpf,
            buckets: 0,
            sources_used: false,
            phases,
            tells,
        }
    }

    fn map(&mut self, name: &str) -> &mut Map {
        self.ebpf.map_mut(name).unwrap_or_else(|| panic!("map {name}"))
    }

    fn fill_hash<K: Pod, V: Pod>(&mut self, name: &str, values: &[(K, V)]) {
        let mut map: HashMap<&mut MapData, K, V> = HashMap::try_from(self.map(name)).expect(name);
        let keys: Vec<K> = map.keys().collect::<Result<_, _>>().expect(name);
        for key in keys {
            map.remove(&key).expect(name);
        }
        for (key, value) in values {
            map.insert(key, value, 0).expect(name);
        }
    }

    fn fill_trie<K: Pod, V: Pod>(&mut self, name: &str, values: &[(u32, K, V)]) {
        let mut map: LpmTrie<&mut MapData, K, V> = LpmTrie::try_from(self.map(name)).expect(name);
        let keys: Vec<Key<K>> = map.keys().collect::<Result<_, _>>().expect(name);
        for key in keys {
            map.remove(&key).expect(name);
        }
        for (len, data, value) in values {
            map.insert(&Key::new(*len, *data), value, 0).expect(name);
        }
    }

    fn fill_array<V: Pod>(&mut self, name: &str, values: impl IntoIterator<Item = (u32, V)>) {
        let mut map: Array<&mut MapData, V> = Array::try_from(self.map(name)).expect(name);
        for (index, value) in values {
            map.set(index, value, 0).expect(name);
        }
    }

    fn array<V: Pod>(&self, name: &str) -> Array<&MapData, V> {
        Array::try_from(self.ebpf.map(name).unwrap_or_else(|| panic!("map {name}"))).expect(name)
    }

    /// Sends one frame from several threads at once.
    pub fn race(&mut self, frame: &[u8], threads: usize) -> Vec<(Verdict, Vec<u8>)> {
        let main = <&mut Xdp>::try_from(self.ebpf.program_mut(MAIN).expect(MAIN)).expect("xdp");
        let (main, start) = (&*main, std::sync::Barrier::new(threads));
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        test_run(main, frame)
                    })
                })
                .collect();
            running
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        })
    }

    /// One frame of which only `first` bytes lie in the first piece of its memory; `None` where the kernel makes no such frames
    /// (before 6.18, or for so few bytes).
    pub fn run_in_pieces(&mut self, frame: &[u8], first: usize) -> Option<(Verdict, Vec<u8>)> {
        let main = <&mut Xdp>::try_from(self.ebpf.program_mut(MAIN).expect(MAIN)).expect("xdp");
        let context = [0, u32::try_from(first).expect("short"), 0, IFINDEX, 0, 0];
        let context: Vec<u8> = context.into_iter().flat_map(u32::to_ne_bytes).collect();
        try_test_run(main, frame, Some(&context))
    }

    /// Events that were told less than a second ago may be told again.
    pub fn forget_pace(&mut self) {
        self.fill_array("EVENT_PACE", (0..PACE_SLOTS).map(|slot| (slot, 0u64)));
    }

    /// Sum of both directions' stats of a service.
    pub fn service_stats(&self, stats: u32) -> Stats {
        let map: PerCpuArray<&MapData, Stats> =
            PerCpuArray::try_from(self.ebpf.map("SERVICE_STATS").expect("SERVICE_STATS"))
                .expect("per-CPU array");
        let values = map.get(&stats, 0).expect("in range");
        values.iter().fold(Stats::default(), |a, b| Stats {
            flows: a.flows + b.flows,
            packets_in: a.packets_in + b.packets_in,
            bytes_in: a.bytes_in + b.bytes_in,
            packets_out: a.packets_out + b.packets_out,
            bytes_out: a.bytes_out + b.bytes_out,
            refused: a.refused + b.refused,
        })
    }
}

impl Kernel {
    pub fn remove_phase(&mut self, index: u32) {
        self.phases.clear_index(&index).expect("it was there");
    }

    pub fn restore_phase(&mut self, index: u32, name: &str) {
        let fd = <&mut Xdp>::try_from(self.ebpf.program_mut(name).expect(name))
            .expect("xdp")
            .fd()
            .expect("loaded");
        self.phases.set(index, fd, 0).expect("tail call");
    }
}

/// What the comparison with the packet logic in user space needs.
impl Kernel {
    /// Nobody is in either flow table, and none of these identifications was given.
    pub fn forget_flows(&mut self, buckets: u32, ids: &[u32]) {
        self.set_table(&(
            vec![Bucket4::default(); buckets as usize],
            vec![Bucket6::default(); buckets as usize],
        ));
        self.fill_array("FRAGMENT_IDS", ids.iter().map(|id| (*id, 0u64)));
    }

    pub fn table(&self) -> Table {
        let four: Array<&MapData, Bucket4> = self.array("FLOWS4");
        let six: Array<&MapData, Bucket6> = self.array("FLOWS6");
        let range = 0..self.buckets;
        (
            range
                .clone()
                .map(|b| four.get(&b, 0).expect("in range"))
                .collect(),
            range.map(|b| six.get(&b, 0).expect("in range")).collect(),
        )
    }

    pub fn set_table(&mut self, (four, six): &Table) {
        self.fill_array("FLOWS4", (0..).zip(four.iter().copied()));
        self.fill_array("FLOWS6", (0..).zip(six.iter().copied()));
    }

    pub fn incarnation(&self) -> u64 {
        self.array("INCARNATION").get(&0, 0).expect("one entry")
    }

    /// Counts of flows: half-open ones; services, servers, sources by index.
    pub fn set_counts(&mut self, half_open: u64, counts: [Vec<(u32, u64)>; 3]) {
        self.fill_array("HALF_OPEN", [(0, half_open)]);
        for (map, counts) in ["OPEN", "OPEN_SERVERS", "SOURCES"].into_iter().zip(counts) {
            self.fill_array(map, counts);
        }
    }

    pub fn set_servers(&mut self, setup: &Setup) {
        self.fill_array("SERVERS", setup.servers.iter().copied());
    }

    pub fn set_clients(&mut self, setup: &Setup) {
        self.fill_array("CLIENT_SERVERS", (0..).zip(setup.client_servers));
    }

    /// First fragments are so much older.
    pub fn age_fragments(&mut self, ns: u64) {
        let map: HashMap<&MapData, FragmentKey, Remembered> =
            HashMap::try_from(self.ebpf.map("FRAGMENTS").expect("FRAGMENTS")).expect("hash");
        let all: Vec<_> = map.iter().collect::<Result<_, _>>().expect("entries");
        let mut map: HashMap<&mut MapData, FragmentKey, Remembered> =
            HashMap::try_from(self.map("FRAGMENTS")).expect("hash");
        for (key, mut first) in all {
            first.time = first.time.saturating_sub(ns);
            map.insert(key, first, 0).expect("known");
        }
    }
}

fn test_run(main: &Xdp, frame: &[u8]) -> (Verdict, Vec<u8>) {
    test_run_with(main, frame, None)
}

fn test_run_with(main: &Xdp, frame: &[u8], context: Option<&[u8]>) -> (Verdict, Vec<u8>) {
    try_test_run(main, frame, context).expect("test run")
}

fn try_test_run(main: &Xdp, frame: &[u8], context: Option<&[u8]>) -> Option<(Verdict, Vec<u8>)> {
    let mut out = vec![0; frame.len() + 256];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: context,
        ..TestRunOptions::default()
    };
    let result = main.test_run(options).ok()?;
    out.truncate(result.data_size_out as usize);
    let verdict = match result.return_value {
        1 => Verdict::Drop,
        2 => Verdict::Pass,
        3 => Verdict::Transmit,
        4 => Verdict::Redirect,
        other => panic!("verdict {other}"),
    };
    Some((verdict, out))
}

impl Kernel {
    /// So many indexes the programs may give to last hops.
    fn offer_last_hops(&mut self, number: u32) {
        let mut free: Queue<&mut MapData, u32> = Queue::try_from(self.map("LAST_HOP_FREE")).expect("queue");
        while free.pop(0).is_ok() {}
        for index in 0..number {
            free.push(index, 0).expect("room");
        }
    }
}

impl Engine for Kernel {
    fn load(&mut self, setup: &Setup) {
        let zeros = |n: u32| (0..n).map(|i| (i, 0u64));
        // The cases of one family never touch the other's table.
        if v6() {
            self.fill_array("FLOWS6", (0..setup.buckets).map(|b| (b, Bucket6::default())));
        } else {
            self.fill_array("FLOWS4", (0..setup.buckets).map(|b| (b, Bucket4::default())));
        }
        self.buckets = setup.buckets;
        self.change(setup);
        self.fill_array("WRR", zeros(MOST_INDEXES));
        self.fill_array("OPEN", zeros(MOST_INDEXES));
        self.fill_array("OPEN_SERVERS", zeros(MOST_INDEXES));
        if std::mem::take(&mut self.sources_used) {
            self.fill_array("SOURCES", zeros(2 * SOURCES_ROW));
        }
        self.fill_hash::<LastHop, u32>("LAST_HOP_INDEX", &[]);
        self.fill_hash::<FragmentKey, Remembered>("FRAGMENTS", &[]);
        self.offer_last_hops(setup.free_last_hops);
        self.fill_array("HALF_OPEN", zeros(1));
        self.fill_array("REFUSALS", (0..METERS).map(|m| (m, Meter::default())));
        let cpus = nr_cpus().expect("cpus");
        let mut counters: PerCpuArray<&mut MapData, u64> =
            PerCpuArray::try_from(self.map("COUNTERS")).expect("per-CPU array");
        for (counter, _) in COUNTERS {
            let zero = PerCpuValues::try_from(vec![0u64; cpus]).expect("one a CPU");
            counters.set(counter.index(), zero, 0).expect("in range");
        }
        let mut stats: PerCpuArray<&mut MapData, Stats> =
            PerCpuArray::try_from(self.map("SERVICE_STATS")).expect("per-CPU array");
        for service in 0..MAX_SERVICES.min(8) {
            let zero = PerCpuValues::try_from(vec![Stats::default(); cpus]).expect("one a CPU");
            stats.set(service, zero, 0).expect("in range");
        }
        self.lease(true);
        while self.tells.next().is_some() {}
    }

    fn change(&mut self, setup: &Setup) {
        self.fill_array("NODE", [(0, setup.node)]);
        self.fill_array("FLOW_SYNC", (0..).zip(setup.sync));
        self.fill_array("GENERATION", [(0, 0u32)]);
        self.fill_array("LEGS", (0..LEG_SLOTS).map(|n| (n, LegSlot::default())));
        self.fill_array(
            "LEGS",
            setup
                .legs
                .iter()
                .map(|(key, leg)| (key.slots()[0], slot(*key, leg))),
        );
        self.fill_hash("OWNED", &setup.owned);
        self.fill_hash("SNAT_RANGES", &setup.snat_ranges);
        self.fill_trie("SERVICES", &setup.services);
        self.fill_array("SERVICE", setup.service.iter().copied());
        self.fill_array("LIMITS", (0..MOST_INDEXES).map(|n| (n, Limits::default())));
        self.sources_used |= !setup.limits.is_empty();
        self.fill_array("LIMITS", setup.limits.iter().copied());
        self.fill_array("PERSISTENCE", (0..MOST_INDEXES).map(|n| (n, 0u64)));
        self.fill_array(
            "PERSISTENCE",
            setup.persistence.iter().map(|(n, rule)| (*n, rule.0)),
        );
        self.set_clients(setup);
        self.fill_trie("CLIENTS", &setup.clients);
        self.fill_array("SCHED", (0u32..).zip(setup.sched.iter().copied()));
        self.fill_array("SERVERS", setup.servers.iter().copied());
        self.fill_array("SNAT_POOLS", setup.pools.iter().copied());
        self.fill_trie("CONNECTED", &setup.connected);
        self.fill_trie("SERVER_NETS", &setup.server_nets);
        self.fill_trie("DIRECT", &setup.direct);
        self.fill_trie("HAIRPIN", &setup.hairpin);
        self.fill_trie("MODE_RULES", &setup.mode_rules);
        self.fill_array("TUNNELS", setup.tunnels.iter().copied());
        let endpoints: Vec<_> = setup.endpoints.iter().map(|e| (*e, 1u32)).collect();
        self.fill_hash("SERVER_ENDPOINTS", &endpoints);
        self.fill_array("NEXT_HOPS", setup.next_hops.iter().copied());
        self.fill_hash("NEIGHBOURS", &setup.neighbours);
        self.fill_trie("ROUTES", &setup.routes);
    }

    fn run(&mut self, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let main = <&mut Xdp>::try_from(self.ebpf.program_mut(MAIN).expect(MAIN)).expect("xdp");
        test_run(main, frame)
    }

    fn run_again(&mut self, frame: &[u8], note: u32) -> (Verdict, Vec<u8>, u32) {
        let main = <&mut Xdp>::try_from(self.ebpf.program_mut(MAIN).expect(MAIN)).expect("xdp");
        let frame = [&note.to_ne_bytes()[..], frame].concat();
        // struct xdp_md: data, data_end, data_meta, and two more.
        let context = [4, u32::try_from(frame.len()).expect("short"), 0, IFINDEX, 0, 0];
        let context: Vec<u8> = context.into_iter().flat_map(u32::to_ne_bytes).collect();
        let (verdict, mut out) = test_run_with(main, &frame, Some(&context));
        let left = u32::from_ne_bytes(out[..4].try_into().expect("four bytes"));
        (verdict, out.split_off(4), left)
    }

    fn permit(&mut self, permission: Permission) {
        let later = u64::MAX - YIELDING;
        let (lease, armed, relaying) = match permission {
            Permission::None => (0, 0, 0),
            Permission::Owner => (later, 0, 0),
            Permission::Yielding => (later | YIELDING, 0, later),
            Permission::Armed => (0, later, 0),
            Permission::ArmedUntilNow => (0, 1, 0),
            Permission::Relaying => (0, 0, later),
        };
        self.fill_array(
            "LEASE",
            [(0, lease), (ARMED_BASE, armed), (RELAYING_BASE, relaying)],
        );
    }

    fn lock_table(&mut self) {
        // Entries stay: a bucket is read, locked, and written back.
        for n in 0..self.buckets {
            if v6() {
                let mut bucket: Bucket6 = self.array("FLOWS6").get(&n, 0).expect("in range");
                bucket.lock = 99;
                self.fill_array("FLOWS6", [(n, bucket)]);
            } else {
                let mut bucket: Bucket4 = self.array("FLOWS4").get(&n, 0).expect("in range");
                bucket.lock = 99;
                self.fill_array("FLOWS4", [(n, bucket)]);
            }
        }
    }

    fn use_up_last_hops(&mut self) {
        self.offer_last_hops(0);
    }

    fn leaves(&mut self, frame: &[u8]) -> bool {
        let gate = <&mut SchedClassifier>::try_from(self.ebpf.program_mut(EGRESS).expect(EGRESS))
            .expect("classifier");
        let mut out = vec![0; frame.len() + 64];
        let options = TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        };
        match gate.test_run(options).expect("test run").return_value {
            0xffff_ffff => true,
            2 => false,
            other => panic!("verdict {other}"),
        }
    }

    fn judge(&mut self, hop: LastHop, believed: bool) {
        let index: HashMap<&MapData, LastHop, u32> =
            HashMap::try_from(self.ebpf.map("LAST_HOP_INDEX").expect("LAST_HOP_INDEX")).expect("hash");
        let known = index.get(&hop, 0).ok();
        let place = known.unwrap_or(1_000);
        let ifindex = if believed { hop.ifindex } else { 0 };
        self.fill_array("LAST_HOPS", [(place, LastHop { ifindex, ..hop })]);
        if known.is_none() {
            let mut index: HashMap<&mut MapData, LastHop, u32> =
                HashMap::try_from(self.map("LAST_HOP_INDEX")).expect("hash");
            index.insert(hop, place, 0).expect("room");
        }
    }

    fn counter(&self, counter: Counter) -> u64 {
        let map: PerCpuArray<&MapData, u64> =
            PerCpuArray::try_from(self.ebpf.map("COUNTERS").expect("COUNTERS")).expect("per-CPU array");
        map.get(&counter.index(), 0).expect("in range").iter().sum()
    }

    fn entries(&self) -> Vec<FlowEntry> {
        let four: Array<&MapData, Bucket4> = self.array("FLOWS4");
        let six: Array<&MapData, Bucket6> = self.array("FLOWS6");
        let entries4 = (0..self.buckets).flat_map(|b| four.get(&b, 0).expect("in range").entries);
        let entries6 = (0..self.buckets).flat_map(|b| six.get(&b, 0).expect("in range").entries);
        entries4
            .map(|e| e.wide())
            .chain(entries6)
            .filter(|e| e.incarnation != 0)
            .collect()
    }

    fn half_open(&self) -> u64 {
        self.array("HALF_OPEN").get(&0, 0).expect("one entry")
    }

    fn tells(&mut self) -> Vec<Vec<u64>> {
        let mut tells = Vec::new();
        while let Some(record) = self.tells.next() {
            let (words, rest) = record.as_chunks();
            assert_eq!(rest.len(), 0, "whole words");
            tells.push(words.iter().map(|word| u64::from_ne_bytes(*word)).collect());
        }
        tells
    }
}

/// A leg as the map holds it. Those of a set-up stand apart.
fn slot(key: LegKey, leg: &Leg) -> LegSlot {
    LegSlot {
        leg: *leg,
        key: key.word(),
        ..LegSlot::default()
    }
}
