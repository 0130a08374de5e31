//! The crate against the kernel: each test in a network namespace of its own that ends with its thread.
#![expect(
    clippy::unwrap_used,
    reason = "in a test helper too, a failure is a failed test"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use onearm_dataplane::sync::{Coarse, Record, Table, Tell, TellRing};
use onearm_dataplane::{
    AttachMode, Attached, AttachedMode, Dataplane, Error, Event, Expiry, FallbackReason, FlowFilter,
    FlowState, Hairpin, LeaseCell, LegAttach, LegSpec, Limits, LimitsSpec, Mode, Neighbour, NextHops,
    OnServerDown, Options, OwnedAddress, OwnedKinds, Persistence, Protocol, RouteSpec, Scheduler,
    ServerChange, ServerId, ServerSpec, ServiceSpec, SnatPoolSpec, SnatRangeSpec, Tables, TunnelSpec, Via,
    egress_gate,
};
use onearm_dataplane_common::addr::Addr;
use onearm_dataplane_common::flow::{FlowKey, flags, seen};
use onearm_dataplane_common::maps::mode;
use onearm_types::{GroupId, NodeId};

const CLIENT: &str = "192.168.100.50";
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 100));
const OTHER_VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 101));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 10));

/// Runs a test body in a fresh network namespace.
fn in_namespace(body: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (needs root)");
        run("ip link set lo up");
        body();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn command(line: &str) -> (bool, String) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

fn run(line: &str) -> String {
    let (ok, text) = command(line);
    assert!(ok, "{line}: {text}");
    text
}

/// The leg `leg0`; its far end `far0` is the client 192.168.100.50.
fn wire() -> u32 {
    run("ip link add leg0 address 02:00:00:00:00:01 type veth peer name far0 address 02:00:00:00:00:50");
    run("ip addr add 192.168.100.50/24 dev far0");
    run("ip link set leg0 up");
    run("ip link set far0 up");
    index("leg0")
}

fn index(name: &str) -> u32 {
    if_nametoindex(name).unwrap()
}

fn leg(name: &str, mode: AttachMode) -> LegAttach {
    LegAttach {
        ifindex: index(name),
        name: name.to_owned(),
        mode,
    }
}

fn load(max_flows: u32) -> Dataplane {
    let options = Options {
        limits: Limits {
            max_flows,
            max_flows6: 0,
            half_open: max_flows.min(65_536),
            dsr_flows: 0,
            persistent_clients: 0,
        },
        node: NodeId::new(1).unwrap(),
        pair_key: [1, 2],
        tell_bytes: Options::TELL_BYTES,
    };
    Dataplane::load(&options).unwrap()
}

#[expect(clippy::disallowed_methods, reason = "any time will do")]
fn start() -> Instant {
    Instant::now()
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    u64::try_from(now.tv_sec()).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap()
}

fn set_leg(dataplane: &mut Dataplane) {
    let spec = LegSpec {
        id: 0,
        ifindex: index("leg0"),
        vlan: None,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1_500,
        addr: Some(Ipv4Addr::new(192, 168, 100, 2)),
        addr6: None,
        link_local: None,
        group: GroupId::FIRST,
        peer_mac: None,
    };
    dataplane.set_legs(&[spec]).unwrap();
}

fn tables(vips: &[IpAddr], services: Vec<ServiceSpec>) -> Tables {
    let kinds = OwnedKinds {
        service: true,
        snat: true,
        ..OwnedKinds::default()
    };
    let owned = vips.iter().map(|addr| OwnedAddress {
        addr: *addr,
        kinds,
        leg: 0,
        group: GroupId::FIRST,
    });
    Tables {
        owned: owned.collect(),
        services,
        connected: vec!["192.168.100.0/24".parse().unwrap()],
        snat_ranges: vec![SnatRangeSpec {
            addr: vips[0],
            first: 20_000,
            last: 59_999,
        }],
        ..Tables::default()
    }
}

fn service() -> ServiceSpec {
    ServiceSpec {
        name: "web".into(),
        vip: VIP,
        protocol: Protocol::Tcp,
        ports: vec![80..=80],
        mode: Mode::BothNat,
        scheduler: Scheduler::Maglev,
        hairpin: Hairpin::Auto,
        persistence: Persistence::default(),
        group: GroupId::FIRST,
        snat: vec![SnatPoolSpec {
            addr: VIP,
            first: 20_000,
            last: 39_999,
        }],
        idle_timeout: Duration::from_mins(15),
        mss_clamp: None,
        per_packet: false,
        limits: LimitsSpec::default(),
        on_server_down: OnServerDown::default(),
        sync_after: Some(Duration::ZERO),
        mode_for: Vec::new(),
        tunnel: TunnelSpec::default(),
        servers: vec![ServerSpec {
            id: ServerId {
                addr: SERVER,
                port: 0,
            },
            weight: 1,
            up: true,
        }],
    }
}

/// An Active with one leg that owns the VIPs.
fn active(vips: &[IpAddr], services: Vec<ServiceSpec>) -> (Dataplane, LeaseCell) {
    wire();
    let mut dataplane = load(10_000);
    set_leg(&mut dataplane);
    dataplane.apply(&tables(vips, services)).unwrap();
    dataplane.attach(&leg("leg0", AttachMode::Auto)).unwrap();
    let lease = dataplane.lease_cell(GroupId::FIRST).unwrap();
    lease.write(now_ns() + 60_000_000_000);
    (dataplane, lease)
}

/// One ping from the far end, with a fresh ARP request.
fn answers(addr: IpAddr) -> bool {
    run("ip neigh flush dev far0");
    command(&format!("ping -n -c 1 -W 1 -I {CLIENT} {addr}")).0
}

fn carries_xdp(name: &str) -> bool {
    run(&format!("ip -d link show {name}")).contains("prog/xdp")
}

/// Waits until a condition holds, at most two seconds: the kernel detaches asynchronously.
fn within_two_seconds(what: &str, condition: impl Fn() -> bool) {
    let deadline = now_ns() + 2_000_000_000;
    while !condition() {
        assert!(now_ns() < deadline, "{what}: not within two seconds");
        std::thread::yield_now();
    }
}

#[test]
#[ignore = "needs root"]
fn room_for_a_million_flows_takes_the_memory_it_says() {
    let dataplane = load(1_000_000);
    let bytes = dataplane.map_bytes();
    // 158 bytes a flow, and some 46 MB of other maps.
    assert!((158_000_000..240_000_000).contains(&bytes), "{bytes} bytes");
    assert!(dataplane.flows().capacity() >= 1_000_000);
    assert_eq!(dataplane.flows().count().total(), 0);
}

#[test]
#[ignore = "needs root"]
fn b135_auto_on_a_veth_is_generic_with_the_reason_and_native_is_native() {
    in_namespace(|| {
        wire();
        let mut dataplane = load(1_000);
        let auto = dataplane.attach(&leg("leg0", AttachMode::Auto)).unwrap();
        assert_eq!(
            (auto.mode, &auto.reason),
            (AttachedMode::Generic, &Some(FallbackReason::Veth))
        );
        assert!(carries_xdp("leg0"));
        assert!(run("ip link show leg0").contains("xdpgeneric"));
        let again = dataplane.attach(&leg("leg0", AttachMode::Native)).unwrap_err();
        assert!(matches!(again, Error::AttachedAlready { .. }), "{again}");
        dataplane.detach(index("leg0")).unwrap();
        assert!(!carries_xdp("leg0"));
        let native = dataplane.attach(&leg("leg0", AttachMode::Native)).unwrap();
        assert_eq!((native.mode, &native.reason), (AttachedMode::Native, &None));
        assert!(!run("ip link show leg0").contains("xdpgeneric"));
        dataplane.detach_all().unwrap();
        assert!(!carries_xdp("leg0"));
    });
}

#[test]
#[ignore = "needs root"]
fn b137_where_native_is_refused_auto_is_generic_and_native_is_an_error_with_a_remedy() {
    in_namespace(|| {
        run("ip link add br0 type bridge");
        let mut dataplane = load(1_000);
        let refused = dataplane.attach(&leg("br0", AttachMode::Native)).unwrap_err();
        assert!(matches!(refused, Error::AttachNative { .. }), "{refused}");
        assert!(refused.to_string().contains("generic"), "{refused}");
        assert!(!carries_xdp("br0"));
        let auto = dataplane.attach(&leg("br0", AttachMode::Auto)).unwrap();
        assert_eq!(auto.mode, AttachedMode::Generic);
        assert!(
            matches!(auto.reason, Some(FallbackReason::Refused { .. })),
            "{auto:?}"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn b137_every_mtu_of_a_veth_can_be_served() {
    in_namespace(|| {
        wire();
        let mut dataplane = load(1_000);
        for mtu in [1_500, 3_498, 3_520, 9_000] {
            run(&format!("ip link set leg0 mtu {mtu}"));
            run(&format!("ip link set far0 mtu {mtu}"));
            dataplane.attach(&leg("leg0", AttachMode::Native)).unwrap();
            run("ip link set far0 mtu 9000");
            dataplane.detach_all().unwrap();
        }
    });
}

#[test]
#[ignore = "needs root"]
fn a_foreign_program_or_a_missing_interface_is_a_typed_error() {
    in_namespace(|| {
        wire();
        let mut first = load(1_000);
        first.attach(&leg("leg0", AttachMode::Generic)).unwrap();
        let mut second = load(1_000);
        for mode in [AttachMode::Auto, AttachMode::Native, AttachMode::Generic] {
            let taken = second.attach(&leg("leg0", mode)).unwrap_err();
            assert!(matches!(taken, Error::InterfaceTaken { .. }), "{mode:?}: {taken}");
        }
        let gone = LegAttach {
            ifindex: 9_999,
            name: "gone0".into(),
            mode: AttachMode::Auto,
        };
        let missing = second.attach(&gone).unwrap_err();
        assert!(matches!(missing, Error::NoSuchInterface { .. }), "{missing}");
        assert!(missing.is_transient());
    });
}

#[test]
#[ignore = "needs root"]
fn b140_an_interface_that_is_not_listed_is_not_touched() {
    in_namespace(|| {
        wire();
        run("ip link add spare0 type veth peer name spare1");
        let state = || run("ip -d -o link show spare0") + &run("tc qdisc show dev spare0");
        let before = state();
        let mut dataplane = load(1_000);
        dataplane.attach(&leg("leg0", AttachMode::Auto)).unwrap();
        let gate = dataplane.add_egress_gate(index("leg0"), "leg0").unwrap();
        assert_eq!(state(), before);
        egress_gate::remove(&gate).unwrap();
        dataplane.detach_all().unwrap();
        drop(dataplane);
        assert_eq!(state(), before);
    });
}

#[test]
#[ignore = "needs root"]
fn b130_a_leg_deleted_and_made_anew_is_attached_again() {
    in_namespace(|| {
        let old = wire();
        let mut dataplane = load(1_000);
        dataplane.attach(&leg("leg0", AttachMode::Auto)).unwrap();
        run("ip link del leg0");
        dataplane.detach(old).unwrap();
        assert!(dataplane.attached().is_empty());
        wire();
        dataplane.attach(&leg("leg0", AttachMode::Auto)).unwrap();
        assert!(carries_xdp("leg0"));
    });
}

#[test]
#[ignore = "needs root"]
fn a_program_answers_while_the_lease_cell_says_so_and_any_process_can_write_it() {
    in_namespace(|| {
        let (dataplane, lease) = active(&[VIP], Vec::new());
        assert!(answers(VIP));
        lease.write(now_ns());
        assert!(!answers(VIP), "the deadline has passed");
        // As the HA process does it: from a descriptor, without anything else of the dataplane.
        let fd: OwnedFd = dataplane.lease_fd().unwrap();
        let ha = LeaseCell::map(&fd, GroupId::FIRST).unwrap();
        drop(fd);
        assert_eq!(ha.read(), lease.read());
        ha.write(now_ns() + 60_000_000_000);
        assert!(answers(VIP));
        lease.clear();
        assert_eq!(ha.read(), 0);
        assert!(!answers(VIP));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(
            LeaseCell::map(&file, GroupId::FIRST),
            Err(Error::NotTheLeaseMap { .. })
        ));
    });
}

#[test]
#[ignore = "needs root"]
fn a_generation_is_in_force_when_apply_returns_and_a_refused_one_never_is() {
    in_namespace(|| {
        let (mut dataplane, _lease) = active(&[VIP], Vec::new());
        assert!(answers(VIP) && !answers(OTHER_VIP));
        dataplane.apply(&tables(&[OTHER_VIP], Vec::new())).unwrap();
        assert!(!answers(VIP) && answers(OTHER_VIP));
        let mut wrong = service();
        wrong.ports.clear();
        let refused = dataplane.apply(&tables(&[VIP], vec![wrong])).unwrap_err();
        assert!(matches!(refused, Error::Tables(_)), "{refused}");
        assert!(!answers(VIP) && answers(OTHER_VIP));
        for n in 0..10 {
            let start = now_ns();
            dataplane
                .apply(&tables(&[VIP, OTHER_VIP], vec![service()]))
                .unwrap();
            println!("apply {n}: {} us", (now_ns() - start) / 1_000);
        }
        assert!(answers(VIP) && answers(OTHER_VIP));
        let counters = dataplane.counters().unwrap();
        assert!(
            counters.all["echo_answered"] >= 4 && counters.all["arp_answered"] >= 4,
            "{counters:?}"
        );
        assert_eq!(counters.all["internal"], 0, "{counters:?}");
        assert!(counters.drops.contains(&"no_lease") && !counters.drops.contains(&"passed"));
    });
}

#[test]
#[ignore = "needs root"]
fn link_descriptors_keep_the_programs_attached_after_their_owner_is_gone() {
    in_namespace(|| {
        let (dataplane, _lease) = active(&[VIP], Vec::new());
        let held = dataplane.keepalive_fds().unwrap();
        assert_eq!(held.len(), 2, "a link and the program array");
        drop(dataplane);
        assert!(carries_xdp("leg0"));
        assert!(
            answers(VIP),
            "maps and programs live on with the link, and the lease decides"
        );
        drop(held);
        within_two_seconds("detached with the last descriptor", || !carries_xdp("leg0"));

        let mut dataplane = load(1_000);
        dataplane.attach(&leg("leg0", AttachMode::Auto)).unwrap();
        let _held = dataplane.keepalive_fds().unwrap();
        dataplane.detach_all().unwrap();
        assert!(
            !carries_xdp("leg0"),
            "a clean stop detaches whoever holds the link"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn the_egress_gate_leaves_nothing_behind_and_what_others_put_there_stays() {
    in_namespace(|| {
        let ifindex = wire();
        let state = || run("tc qdisc show dev leg0") + &run("tc filter show dev leg0 egress");
        let before = state();
        let mut dataplane = load(1_000);
        let intended = egress_gate::intended(ifindex, "leg0").unwrap();
        assert_eq!(state(), before, "only asked");
        let gate = dataplane.add_egress_gate(ifindex, "leg0").unwrap();
        assert!(gate.qdisc_added && state().contains("egress_gate"), "{}", state());
        assert_eq!(
            intended, gate,
            "what a process killed in between has written down"
        );
        // A crash: nothing is removed; the next start finds it, and so does a restore from the journal alone.
        drop(dataplane);
        assert!(state().contains("egress_gate"));
        assert!(egress_gate::is_present(ifindex, "leg0").unwrap());
        let mut dataplane = load(1_000);
        let again = dataplane.add_egress_gate(ifindex, "leg0").unwrap();
        assert!(!again.qdisc_added);
        assert_eq!(
            run("tc filter show dev leg0 egress")
                .matches("direct-action")
                .count(),
            1,
            "{}",
            state()
        );
        egress_gate::remove(&gate).unwrap();
        assert!(!egress_gate::is_present(ifindex, "leg0").unwrap());
        assert_eq!(state(), before);
        egress_gate::remove(&gate).unwrap();

        run("tc qdisc add dev leg0 clsact");
        let theirs = state();
        assert!(!egress_gate::intended(ifindex, "leg0").unwrap().qdisc_added);
        let gate = dataplane.add_egress_gate(ifindex, "leg0").unwrap();
        assert!(!gate.qdisc_added);
        egress_gate::remove(&gate).unwrap();
        assert_eq!(state(), theirs);
        run("tc qdisc del dev leg0 clsact");

        let gate = dataplane.add_egress_gate(ifindex, "leg0").unwrap();
        let mut theirs = Command::new("tc");
        theirs
            .args("filter add dev leg0 ingress prio 9 bpf flowid 1:1 bytecode".split(' '))
            .arg("1,6 0 0 0");
        assert!(theirs.status().unwrap().success());
        egress_gate::remove(&gate).unwrap();
        assert!(state().contains("clsact"), "somebody else uses it now");
        run("ip link del leg0");
        egress_gate::remove(&gate).unwrap();
        let gone = dataplane.add_egress_gate(ifindex, "leg0").unwrap_err();
        assert!(matches!(gone, Error::EgressGate { .. }), "{gone}");
    });
}

fn neighbours() -> NextHops {
    NextHops {
        neighbours: vec![
            Neighbour {
                leg: 0,
                addr: SERVER,
                mac: Some([2, 0, 0, 0, 0, 0x50]),
            },
            Neighbour {
                leg: 0,
                addr: CLIENT.parse().unwrap(),
                mac: Some([2, 0, 0, 0, 0, 0x50]),
            },
        ],
        routes: vec![RouteSpec {
            prefix: "192.168.100.0/24".parse().unwrap(),
            via: Via::OnLink { leg: 0 },
            mtu: None,
        }],
    }
}

#[test]
#[ignore = "needs root"]
fn a_flow_the_programs_make_is_listed_expired_and_then_its_indexes_are_free() {
    in_namespace(|| {
        let (mut dataplane, _lease) = active(&[VIP], vec![service()]);
        dataplane.set_epoch(0x5_0007);
        dataplane.set_next_hops(&neighbours()).unwrap();
        let call = || {
            drop(TcpStream::connect_timeout(
                &SocketAddr::from((VIP, 80)),
                Duration::from_millis(300),
            ));
        };
        call();
        let flows = dataplane.flows();
        let listed = flows.list(
            &FlowFilter {
                vip: Some(VIP),
                ..FlowFilter::default()
            },
            10,
            now_ns(),
        );
        let [flow] = listed.flows.as_slice() else {
            panic!("{listed:?}, {:?}", dataplane.counters())
        };
        assert_eq!(
            (flow.server.ip(), flow.server.port(), flow.state),
            (SERVER, 80, FlowState::HalfOpen)
        );
        assert_eq!(
            (flow.client.ip().to_string().as_str(), flow.mode),
            (CLIENT, Mode::BothNat)
        );
        assert_eq!(flow.incarnation >> 40, 1 << 16 | 7, "node and epoch");
        assert_eq!(flows.half_open(), 1);
        let traffic = dataplane.traffic().unwrap();
        assert_eq!((traffic[0].name.as_str(), traffic[0].traffic.flows), ("web", 1));
        assert_eq!(
            (traffic[0].servers[0].id.addr, traffic[0].servers[0].traffic.flows),
            (SERVER, 1)
        );
        assert_eq!(u32::from(flow.server_index), traffic[0].servers[0].index);

        let down = ServerChange {
            service: "web".into(),
            server: ServerId {
                addr: SERVER,
                port: 0,
            },
            weight: None,
            up: Some(false),
        };
        dataplane.change_servers(&[down]).unwrap();
        run("ip neigh flush dev far0");
        let before = dataplane.counters().unwrap().all["no_server"];
        call();
        assert!(
            dataplane.counters().unwrap().all["no_server"] > before,
            "{:?}",
            dataplane.counters()
        );

        dataplane.apply(&tables(&[VIP], Vec::new())).unwrap();
        assert_eq!(dataplane.reclaim().unwrap().freed, 0, "the flow still names them");
        let mut expiry = Expiry::new(dataplane.flows());
        assert_eq!(expiry.expire(now_ns(), u32::MAX, |_| ()).removed, 0);
        let progress = expiry.expire(now_ns() + 11_000_000_000, u32::MAX, |_| ());
        assert_eq!((progress.removed, flows.half_open()), (1, 0));
        let reclaimed = dataplane.reclaim().unwrap();
        assert_eq!(
            (reclaimed.freed, reclaimed.waiting),
            (3, 0),
            "service, server, next hop"
        );
    });
}

/// A segment of a host, by the last byte of its address, to a port of the VIP.
fn segment(host: u8, ports: (u16, u16), flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let mut tcp = [0_u8; 20];
    tcp[0..2].copy_from_slice(&ports.0.to_be_bytes());
    tcp[2..4].copy_from_slice(&ports.1.to_be_bytes());
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    tcp[8..12].copy_from_slice(&ack.to_be_bytes());
    (tcp[12], tcp[13]) = (0x50, flags);
    ip_frame_of(host, 6, 0x4000, &tcp)
}

/// Of what the node's own program sent: destination's last byte, source port, destination port.
fn way(frame: &[u8]) -> (u8, u16, u16) {
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    (frame[33], port(34), port(36))
}

#[test]
#[ignore = "needs root"]
fn a_flow_of_the_peer_is_forwarded_both_ways_and_what_becomes_of_it_is_told() {
    const RST: u8 = 4;
    const ACK: u8 = 16;
    in_namespace(|| {
        let (mut dataplane, _lease) = active(&[VIP], vec![service()]);
        dataplane.set_next_hops(&neighbours()).unwrap();
        dataplane.judge_last_hops(start()).unwrap();
        let mut tells = dataplane.take_tells().unwrap();
        assert!(dataplane.take_tells().is_none());
        tells.listen(true);
        let addr = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => Addr::v4(u32::from_ne_bytes(addr.octets())),
            IpAddr::V6(addr) => Addr::from_bytes(addr.octets()),
        };
        let incarnation = (2 << 56) + (9 << 40) + 77;
        let record = Record {
            key: FlowKey::new(
                6,
                addr(CLIENT.parse().unwrap()),
                50_000_u16.to_be(),
                addr(VIP),
                80_u16.to_be(),
            ),
            new_saddr: addr(VIP),
            new_daddr: addr(SERVER),
            new_sport: 45_000_u16.to_be(),
            new_dport: 80_u16.to_be(),
            flags: mode::BOTH_NAT << flags::MODE_SHIFT,
            client: seen::OPENED | seen::CONFIRMED,
            server: seen::OPENED,
            client_ack: 1_000,
            server_ack: 2_000,
            idle_ticks: 13_500,
            packets: 9,
            leg: 0,
            vlan: 0,
            incarnation,
        };
        let flows = dataplane.flows();
        let put = flows.put(&record, now_ns()).unwrap();
        assert_eq!(
            flows.read(put.place),
            Some(record),
            "its client is a neighbour on the leg"
        );
        let frames = [
            segment(50, (50_000, 80), ACK, 2_000, 1_000),
            segment(10, (80, 45_000), ACK, 1_000, 2_000),
        ];
        let out: Vec<_> = exchange(2, &frames).iter().map(|frame| way(frame)).collect();
        assert_eq!(
            out,
            [(10, 45_000, 80), (50, 80, 50_000)],
            "{:?}",
            dataplane.counters()
        );
        let mut told = Vec::new();
        assert_eq!(
            tells.drain(10, |tell| told.push(tell)),
            0,
            "nothing has changed: {told:?}"
        );
        let readable = |tells: &TellRing| {
            let fd = PollFd::new(tells.as_fd(), PollFlags::POLLIN);
            poll(&mut [fd], PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!readable(&tells));
        exchange(1, &[segment(10, (80, 45_000), RST, 1_000, 0)]);
        assert!(readable(&tells));
        assert_eq!(tells.drain(10, |tell| told.push(tell)), 1);
        assert_eq!(told, [Tell::Look(put.place)]);
        assert_eq!(flows.read(put.place).unwrap().coarse(), Some(Coarse::Closing));
        // The client calls again: another flow takes the place of this one.
        exchange(1, &[segment(50, (50_000, 80), 2, 1, 0)]);
        told.clear();
        assert_eq!(tells.drain(10, |tell| told.push(tell)), 1);
        assert!(
            matches!(told[0], Tell::Ended { place, record } if place == put.place && record.incarnation == incarnation),
            "{told:?}"
        );
        assert_eq!(flows.end(&record.key, record.incarnation), None);
        assert_eq!((tells.lost().unwrap(), flows.half_open()), (0, 1));
    });
}

/// A SYN of a client's port to the VIP.
fn syn(port: u16) -> Vec<u8> {
    let mut tcp = [0_u8; 20];
    tcp[0..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&80_u16.to_be_bytes());
    (tcp[12], tcp[13]) = (0x50, 2);
    ip_frame(6, 0x4000, &tcp)
}

/// Calls from so many ports; how many of the SYNs that left went to each server, by its last byte.
fn calls(ports: std::ops::Range<u16>) -> BTreeMap<u8, u64> {
    let mut counts = BTreeMap::new();
    let frames: Vec<Vec<u8>> = ports.map(syn).collect();
    // No more than a socket holds.
    for some in frames.chunks(50) {
        for frame in exchange(some.len(), some) {
            *counts.entry(frame[33]).or_default() += 1;
        }
    }
    counts
}

/// The server whose address ends in `n`.
fn server(n: u8) -> ServerSpec {
    ServerSpec {
        id: ServerId {
            addr: IpAddr::V4(Ipv4Addr::new(192, 168, 100, n)),
            port: 0,
        },
        weight: 1,
        up: true,
    }
}

#[test]
#[ignore = "needs root"]
fn b151_counters_of_a_server_only_grow_and_say_what_it_got() {
    in_namespace(|| {
        let of = |servers: &[u8]| ServiceSpec {
            scheduler: Scheduler::Wrr,
            servers: servers.iter().copied().map(server).collect(),
            ..service()
        };
        let (mut dataplane, _lease) = active(&[VIP], vec![of(&[11, 12, 13])]);
        let mut known = neighbours();
        known.neighbours.extend((11..15).map(|n| Neighbour {
            leg: 0,
            addr: server(n).id.addr,
            mac: Some([2, 0, 0, 0, 0, 0x50]),
        }));
        dataplane.set_next_hops(&known).unwrap();
        let mut got: BTreeMap<u8, u64> = BTreeMap::new();
        let mut call = |dataplane: &Dataplane, ports| {
            for (server, count) in calls(ports) {
                *got.entry(server).or_default() += count;
            }
            let traffic = dataplane.traffic().unwrap().remove(0);
            let last = |id: ServerId| match id.addr {
                IpAddr::V4(addr) => addr.octets()[3],
                IpAddr::V6(_) => unreachable!(),
            };
            for counted in &traffic.servers {
                let want = got.get(&last(counted.id)).copied().unwrap_or(0);
                assert_eq!(
                    (counted.traffic.flows, counted.traffic.packets_in),
                    (want, want),
                    "{:?}",
                    counted.id
                );
            }
            let sum: u64 = got.values().sum();
            assert_eq!((traffic.traffic.flows, traffic.traffic.packets_in), (sum, sum));
            got.clone()
        };
        let first = call(&dataplane, 1_000..1_300);
        assert_eq!(first, BTreeMap::from([(11, 100), (12, 100), (13, 100)]));
        let health = |up| ServerChange {
            service: "web".into(),
            server: server(12).id,
            weight: None,
            up: Some(up),
        };
        dataplane.change_servers(&[health(false)]).unwrap();
        let second = call(&dataplane, 2_000..2_100);
        assert_eq!(second[&12], 100, "none while it is down");
        dataplane.change_servers(&[health(true)]).unwrap();
        let third = call(&dataplane, 3_000..3_090);
        assert_eq!(third[&12], 130);
        dataplane.apply(&tables(&[VIP], vec![of(&[12, 13, 14])])).unwrap();
        let fourth = call(&dataplane, 4_000..4_090);
        assert_eq!((fourth[&11], fourth[&12], fourth[&14]), (third[&11], 160, 30));
    });
}

/// A query from a port of the client: the server it went to, by its last byte, which has answered it.
fn answered(port: u16) -> u8 {
    let datagram = |from: &[u8], to: &[u8]| [from, to, &[0, 8, 0, 0]].concat();
    let query = datagram(&port.to_be_bytes(), &53_u16.to_be_bytes());
    let asked = exchange(1, &[ip_frame(17, 0x4000, &query)]);
    let (server, source) = (asked[0][33], &asked[0][34..36]);
    let answer = datagram(&53_u16.to_be_bytes(), source);
    let told = exchange(1, &[ip_frame_of(server, 17, 0x4000, &answer)]);
    assert_eq!(told[0][36..38], port.to_be_bytes());
    server
}

#[test]
#[ignore = "needs root"]
fn a_client_stays_with_its_server_through_a_change_that_comes_before_any_sweep() {
    in_namespace(|| {
        let spec = ServiceSpec {
            scheduler: Scheduler::SourceHash,
            persistence: Persistence {
                time: Some(Duration::from_mins(10)),
                prefix: None,
            },
            servers: (11..15).map(server).collect(),
            ..names()
        };
        let change = |server_: u8, weight, up| ServerChange {
            service: "names".into(),
            server: server(server_).id,
            weight,
            up,
        };
        let (mut dataplane, _lease) = active(&[VIP], vec![spec]);
        let mut known = neighbours();
        known.neighbours.extend((11..15).map(|n| Neighbour {
            leg: 0,
            addr: server(n).id.addr,
            mac: Some([2, 0, 0, 0, 0, 0x50]),
        }));
        dataplane.set_next_hops(&known).unwrap();

        // Down while the client comes, and up again: the hash would lead it back.
        let by_hash = answered(1_000);
        let mut expiry = Expiry::new(dataplane.flows());
        assert_eq!(
            expiry
                .expire(now_ns() + 1_000_000_000_000, u32::MAX, |_| ())
                .removed,
            1
        );
        dataplane
            .change_servers(&[change(by_hash, None, Some(false))])
            .unwrap();
        let other = answered(1_001);
        assert_ne!(other, by_hash);
        dataplane
            .change_servers(&[change(by_hash, None, Some(true))])
            .unwrap();
        assert_eq!(answered(1_002), other);

        // Forgotten, then back by the hash, and drained.
        dataplane
            .change_servers(&[change(other, None, Some(false))])
            .unwrap();
        assert_eq!(answered(1_003), by_hash);
        dataplane
            .change_servers(&[change(by_hash, Some(0), None)])
            .unwrap();
        assert_eq!(
            answered(1_004),
            by_hash,
            "new flows of a client of a drained server"
        );
    });
}

#[test]
#[ignore = "needs root"]
fn b67_a_flow_follows_the_new_mac_of_its_client_by_one_write() {
    in_namespace(|| {
        let (mut dataplane, _lease) = active(&[VIP], vec![service()]);
        let hops = |client: u8| {
            let mut hops = neighbours();
            hops.neighbours[0].mac = Some([2, 0, 0, 0, 0, 0x10]);
            hops.neighbours[1].mac = Some([2, 0, 0, 0, 0, client]);
            hops
        };
        dataplane.set_next_hops(&hops(0x50)).unwrap();
        dataplane.judge_last_hops(start()).unwrap();
        drop(TcpStream::connect_timeout(
            &SocketAddr::from((VIP, 80)),
            Duration::from_millis(100),
        ));
        assert_eq!(dataplane.flows().count().total(), 1);
        let report = dataplane.set_next_hops(&hops(0x51)).unwrap();
        assert_eq!(
            report.writes, 2,
            "the neighbour's next hop, and the last hop of the flow"
        );
        assert_eq!(dataplane.set_next_hops(&hops(0x51)).unwrap().writes, 0);
    });
}

#[test]
#[ignore = "needs root"]
fn events_arrive_as_a_stream() {
    in_namespace(|| {
        let (mut dataplane, _lease) = active(&[VIP], vec![service()]);
        let events = dataplane.take_events().unwrap();
        assert!(dataplane.take_events().is_none());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut stream = events.into_stream().unwrap();
            // Nobody has told the programs the way to the server.
            drop(TcpStream::connect_timeout(
                &SocketAddr::from((VIP, 80)),
                Duration::from_millis(100),
            ));
            let mut next = async || {
                let event = tokio::time::timeout(Duration::from_secs(2), stream.next()).await;
                event.unwrap().unwrap()
            };
            let (client, event) = (next().await, next().await);
            assert!(
                matches!(client.event, Event::NeighbourWanted { leg: 0, .. }),
                "replies to the client should go by its resolved address: {client:?}"
            );
            assert!(
                matches!(
                    event.event,
                    Event::NextHopWanted {
                        addr: SERVER,
                        leg: 0,
                        ..
                    }
                ),
                "{event:?}"
            );
            assert!(now_ns() - event.time_ns < 2_000_000_000);
            let quiet = tokio::time::timeout(Duration::from_millis(50), stream.next()).await;
            assert!(quiet.is_err(), "{quiet:?}");
        });
    });
}

#[test]
#[ignore = "needs root"]
fn attached_legs_name_themselves() {
    in_namespace(|| {
        let ifindex = wire();
        let mut dataplane = load(1_000);
        dataplane.attach(&leg("leg0", AttachMode::Generic)).unwrap();
        let names: Vec<(u32, &str)> = dataplane
            .attached()
            .iter()
            .map(|a: &Attached| (a.ifindex, a.name.as_str()))
            .collect();
        assert_eq!(names, [(ifindex, "leg0")]);
        assert!(format!("{dataplane:?}").contains("leg0"));
    });
}

/// The limits of the configuration at once: 4,000 VIPs with a service each, 16,000 servers.
fn largest() -> Tables {
    let mut tables = Tables::default();
    for n in 0..4_000_u32 {
        let vip = IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n));
        let kinds = OwnedKinds {
            service: true,
            snat: true,
            ..OwnedKinds::default()
        };
        tables.owned.push(OwnedAddress {
            addr: vip,
            kinds,
            leg: 0,
            group: GroupId::FIRST,
        });
        let server = |m| ServerSpec {
            id: ServerId {
                addr: IpAddr::V4(Ipv4Addr::from(0x0b00_0000 + n * 4 + m)),
                port: 8_080,
            },
            weight: 1,
            up: true,
        };
        tables.services.push(ServiceSpec {
            name: format!("service-{n}"),
            vip,
            mode: Mode::Dnat,
            snat: vec![SnatPoolSpec {
                addr: vip,
                first: 20_000,
                last: 39_999,
            }],
            servers: (0..4).map(server).collect(),
            ..service()
        });
    }
    tables
}

#[test]
#[ignore = "needs root"]
fn the_largest_configuration_is_applied_changed_and_applied_again() {
    let mut dataplane = load(10_000);
    let mut tables = largest();
    let timed = |what: &str, work: &mut dyn FnMut()| {
        let start = now_ns();
        work();
        let took = (now_ns() - start) / 1_000_000;
        println!("{what}: {took} ms");
        assert!(took < 5_000, "{what}: {took} ms");
    };
    timed("first apply", &mut || {
        dataplane.apply(&tables).unwrap();
    });
    timed("apply of the same", &mut || {
        dataplane.apply(&tables).unwrap();
    });
    tables.services.truncate(3_999);
    timed("apply of one service less", &mut || {
        dataplane.apply(&tables).unwrap();
    });
    let change = |n: u32, up| ServerChange {
        service: format!("service-{n}"),
        server: ServerId {
            addr: IpAddr::V4(Ipv4Addr::from(0x0b00_0000 + n * 4)),
            port: 8_080,
        },
        weight: None,
        up: Some(up),
    };
    timed("one server down", &mut || {
        dataplane.change_servers(&[change(7, false)]).unwrap();
    });
    let all: Vec<ServerChange> = (0..3_999).map(|n| change(n, false)).collect();
    timed("a server of every service down", &mut || {
        dataplane.change_servers(&all).unwrap();
    });
    let gateway = IpAddr::V4(Ipv4Addr::new(192, 168, 100, 1));
    let hops = |mac| NextHops {
        neighbours: vec![Neighbour {
            leg: 0,
            addr: gateway,
            mac: Some(mac),
        }],
        routes: vec![RouteSpec {
            prefix: "0.0.0.0/0".parse().unwrap(),
            via: Via::Gateway {
                leg: 0,
                addr: gateway,
            },
            mtu: None,
        }],
    };
    let spec = LegSpec {
        id: 0,
        ifindex: 1,
        vlan: None,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1_500,
        addr: None,
        addr6: None,
        link_local: None,
        group: GroupId::FIRST,
        peer_mac: None,
    };
    dataplane.set_legs(&[spec]).unwrap();
    timed("routes", &mut || {
        dataplane.set_next_hops(&hops([2, 0, 0, 0, 0, 9])).unwrap();
    });
    let mut writes = 0;
    timed("a new MAC of the router of all servers", &mut || {
        writes = dataplane.set_next_hops(&hops([2, 0, 0, 0, 0, 8])).unwrap().writes;
    });
    assert_eq!(writes, 16_001);
    timed("traffic of all", &mut || {
        assert_eq!(dataplane.traffic().unwrap().len(), 3_999);
    });
    timed("reclaim", &mut || {
        assert_eq!(dataplane.reclaim().unwrap().freed, 1 + 4 + 4);
    });
}

/// An IPv4 fragment of a UDP datagram from the client to port 53 of the VIP. `word`: flags and offset.
fn fragment(word: u16, payload: &[u8]) -> Vec<u8> {
    ip_frame(17, word, payload)
}

/// An IPv4 packet (identification 7) from the client to the VIP. `word`: flags and offset.
fn ip_frame(protocol: u8, word: u16, payload: &[u8]) -> Vec<u8> {
    ip_frame_of(50, protocol, word, payload)
}

/// The same from any host of the network, by the last byte of its address.
fn ip_frame_of(host: u8, protocol: u8, word: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = vec![
        0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0, 192, 168, 100, host, 192, 168, 100, 100,
    ];
    let total = u16::try_from(header.len() + payload.len()).unwrap();
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&word.to_be_bytes());
    let words = header
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    let folded = u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    header[10..12].copy_from_slice(&(!folded).to_be_bytes());
    [
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0x50, 8, 0][..],
        &header,
        payload,
    ]
    .concat()
}

/// Sends frames from the far end; the first `want` IPv4 frames that the leg sends.
fn exchange(want: usize, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    const SCRIPT: &str = "
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(('far0', 0))
s.settimeout(0.1)
for frame in sys.argv[2:]:
    s.send(bytes.fromhex(frame))
want, end = int(sys.argv[1]), time.monotonic() + 5
while want and time.monotonic() < end:
    try:
        frame = s.recv(70000)
    except TimeoutError:
        continue
    if frame[6:14] == bytes([2, 0, 0, 0, 0, 1, 8, 0]):
        print(frame.hex())
        want -= 1
";
    let hex = |frame: &Vec<u8>| {
        frame
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    };
    let output = Command::new("python3")
        .args(["-c", SCRIPT, &want.to_string()])
        .args(frames.iter().map(hex))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let bytes = |line: &str| {
        let pairs = line.as_bytes().chunks(2);
        pairs
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(bytes)
        .collect()
}

/// Payloads by their offset in bytes.
fn by_offset(frames: &[Vec<u8>]) -> BTreeMap<usize, Vec<u8>> {
    let offset = |frame: &[u8]| usize::from(u16::from_be_bytes([frame[20] & 0x1f, frame[21]])) * 8;
    frames
        .iter()
        .map(|frame| (offset(frame), frame[34..].to_vec()))
        .collect()
}

fn names() -> ServiceSpec {
    ServiceSpec {
        name: "names".into(),
        protocol: Protocol::Udp,
        ports: vec![53..=53],
        ..service()
    }
}

#[test]
#[ignore = "needs root"]
fn b82_fragments_in_reverse_order_and_packets_to_be_fragmented_pass_by_the_helper() {
    in_namespace(|| {
        let (mut dataplane, _lease) = active(&[VIP], vec![names()]);
        dataplane.set_next_hops(&neighbours()).unwrap();
        let helper = dataplane.helper().unwrap();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let running = std::thread::spawn(move || helper.run(&stopped));

        let body: Vec<u8> = (0..3_992_usize).map(|n| n.to_le_bytes()[0]).collect();
        // Ports, length 4,000, no checksum.
        let datagram = [&[0x9c, 0x40, 0, 53, 0x0f, 0xa0, 0, 0][..], &body].concat();
        let cut = |at: usize| {
            let end = (at + 1_480).min(datagram.len());
            let more = if end < datagram.len() { 0x2000 } else { 0 };
            fragment(u16::try_from(at / 8).unwrap() | more, &datagram[at..end])
        };
        let out = exchange(3, &[cut(2_960), cut(1_480), cut(0)]);
        let pieces = by_offset(&out);
        assert_eq!(pieces.keys().copied().collect::<Vec<_>>(), [0, 1_480, 2_960]);
        let whole: Vec<u8> = pieces.into_values().flatten().collect();
        assert_eq!(whole[8..], body);
        for frame in &out {
            assert_eq!(frame[18..20], out[0][18..20], "one identification");
            assert_eq!(frame[26..34], [192, 168, 100, 100, 192, 168, 100, 10]);
        }

        let mut narrow = neighbours();
        narrow.routes[0].mtu = Some(600);
        dataplane.set_next_hops(&narrow).unwrap();
        let datagram = [&[0x9c, 0x40, 0, 53, 0x03, 0xf0, 0, 0][..], &body[..1_000]].concat();
        let out = exchange(2, &[fragment(0, &datagram)]);
        let pieces = by_offset(&out);
        assert_eq!(pieces.keys().copied().collect::<Vec<_>>(), [0, 576]);
        let whole: Vec<u8> = pieces.into_values().flatten().collect();
        assert_eq!(whole[8..], body[..1_000]);

        let counters = dataplane.counters().unwrap();
        let of = |name| counters.all[name];
        assert_eq!(
            (of("fragment_kept"), of("divided"), of("fragment_followed")),
            (2, 1, 3)
        );
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        running.join().unwrap().unwrap();
    });
}
