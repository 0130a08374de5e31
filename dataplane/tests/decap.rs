//! L3 DSR from end to end: a client, the balancer, and a server without a tunnel device, each in a namespace of its own on
//! one bridge.
#![expect(
    clippy::unwrap_used,
    reason = "in a test helper too, a failure is a failed test"
)]

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::gettid;
use onearm_dataplane::{
    AttachMode, Dataplane, DecapSpec, Decapsulator, Error, Hairpin, LeaseCell, LegAttach, LegSpec, Limits,
    LimitsSpec, Mode, Neighbour, NextHops, OnServerDown, Options, OwnedAddress, OwnedKinds, Persistence,
    Protocol, RouteSpec, Scheduler, ServerId, ServerSpec, ServiceSpec, Tables, TunnelSpec, Via,
};
use onearm_types::{GroupId, NodeId};

const GUE: u16 = 6_080;
/// What the client uploads.
const BYTES: usize = 1 << 20;

/// Last octet of the addresses.
const NODE: u8 = 2;
const SERVER: u8 = 10;
const CLIENT: u8 = 50;
const VIP: u8 = 100;

fn addr(v6: bool, last: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)).into()
    } else {
        Ipv4Addr::new(192, 168, 100, last).into()
    }
}

const fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which ends with it.
struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

impl Host {
    fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (tell, told) = channel();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a new network namespace (needs root)");
            tell.send(gettid().as_raw()).unwrap();
            while let Ok(job) = todo.recv() {
                job();
            }
        });
        Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tid: told.recv().unwrap(),
        }
    }

    /// Runs something there.
    fn call<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (tell, told) = channel();
        self.start(move || drop(tell.send(job())));
        told.recv().expect("the job ended well")
    }

    /// Runs something there, in a thread beside the others.
    fn start(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.as_ref().unwrap();
        jobs.send(Box::new(move || drop(std::thread::spawn(job))))
            .unwrap();
    }

    fn run(&self, line: &str) -> String {
        let line = line.to_owned();
        self.call(move || {
            let mut words = line.split_whitespace();
            let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{line}: {text}");
            text
        })
    }

    fn write(&self, path: &'static str, text: &'static str) {
        self.call(move || std::fs::write(path, text).unwrap());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.jobs.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// The bridge with the balancer's leg, the client, the server.
struct Drawing {
    node: Host,
    client: Host,
    server: Host,
}

impl Drawing {
    fn new() -> Self {
        let drawing = Self {
            node: Host::new(),
            client: Host::new(),
            server: Host::new(),
        };
        let node = &drawing.node;
        node.run("ip link add br0 type bridge mcast_snooping 0");
        node.run("ip link set br0 up");
        for (host, name, last) in [
            (node, "leg0", NODE),
            (&drawing.client, "c0", CLIENT),
            (&drawing.server, "s0", SERVER),
        ] {
            node.run(&format!(
                "ip link add {name} address 02:00:00:00:00:{last:02x} type veth peer name p-{name}"
            ));
            node.run(&format!("ip link set p-{name} master br0 up"));
            if host.tid != node.tid {
                node.run(&format!("ip link set {name} netns {}", host.tid));
            }
            // One segment a packet, whole checksums: what a network would carry.
            host.run(&format!("ethtool -K {name} tx off tso off gso off gro off"));
            host.run(&format!("ip link set {name} up"));
            host.run("ip link set lo up");
            if host.tid != node.tid {
                host.run(&format!("ip addr add {}/24 dev {name}", addr(false, last)));
                host.run(&format!("ip addr add {}/64 dev {name} nodad", addr(true, last)));
            }
        }
        let server = &drawing.server;
        server.write("/proc/sys/net/ipv4/conf/s0/arp_ignore", "1");
        server.write("/proc/sys/net/ipv4/conf/s0/arp_announce", "2");
        server.run(&format!("ip addr add {}/32 dev lo", addr(false, VIP)));
        server.run(&format!("ip addr add {}/128 dev lo nodad", addr(true, VIP)));
        drawing
    }

    fn balance(&self, gue_port: Option<u16>) -> (Dataplane, LeaseCell) {
        self.node.call(move || balance(gue_port))
    }

    fn decapsulate(&self, spec: DecapSpec) -> Result<Decapsulator, Error> {
        self.server.call(move || {
            let leg = LegAttach {
                ifindex: if_nametoindex("s0").unwrap(),
                name: "s0".into(),
                mode: AttachMode::Auto,
            };
            Decapsulator::attach(&leg, &spec)
        })
    }

    /// Uploads and hears how much has come; `None` without a connection.
    fn upload(&self, v6: bool) -> Option<usize> {
        let vip = SocketAddr::from((addr(v6, VIP), 80));
        let (ready, listening) = channel();
        self.server.start(move || {
            let listener = TcpListener::bind(vip).unwrap();
            ready.send(()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = Vec::new();
            if stream.read_to_end(&mut bytes).is_ok() {
                drop(stream.write_all(&bytes.len().to_be_bytes()));
            }
        });
        listening.recv().unwrap();
        let uploaded = self.client.call(move || {
            let mut stream = TcpStream::connect_timeout(&vip, Duration::from_secs(1)).ok()?;
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(&vec![7; BYTES]).ok()?;
            stream.shutdown(Shutdown::Write).ok()?;
            let mut heard = [0; 8];
            stream.read_exact(&mut heard).ok()?;
            Some(usize::from_be_bytes(heard))
        });
        if uploaded.is_none() {
            // Ends the server's thread.
            self.server.call(move || drop(TcpStream::connect(vip)));
        }
        uploaded
    }
}

fn spec(gue_port: Option<u16>) -> DecapSpec {
    DecapSpec {
        vips: [false, true].map(|v6| addr(v6, VIP)).to_vec(),
        from: [false, true].map(|v6| addr(v6, NODE).into()).to_vec(),
        gue_port,
    }
}

/// An Active that balances both families to the server.
fn balance(gue_port: Option<u16>) -> (Dataplane, LeaseCell) {
    let options = Options {
        limits: Limits {
            max_flows: 1_000,
            max_flows6: 1_000,
            half_open: 1_000,
            dsr_flows: 1_000,
            persistent_clients: 0,
        },
        node: NodeId::new(1).unwrap(),
        pair_key: [1, 2],
        tell_bytes: Options::TELL_BYTES,
    };
    let mut dataplane = Dataplane::load(&options).unwrap();
    let ifindex = if_nametoindex("leg0").unwrap();
    let leg = LegSpec {
        id: 0,
        ifindex,
        vlan: None,
        mac: mac(NODE),
        mtu: 1_500,
        addr: Some(Ipv4Addr::new(192, 168, 100, NODE)),
        addr6: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(NODE))),
        link_local: None,
        group: GroupId::FIRST,
        peer_mac: None,
    };
    dataplane.set_legs(&[leg]).unwrap();
    let families = [false, true];
    let on_link = |prefix: &str| RouteSpec {
        prefix: prefix.parse().unwrap(),
        via: Via::OnLink { leg: 0 },
        mtu: None,
    };
    let neighbours = families.into_iter().flat_map(|v6| {
        [SERVER, CLIENT].map(|last| Neighbour {
            leg: 0,
            addr: addr(v6, last),
            mac: Some(mac(last)),
        })
    });
    let hops = NextHops {
        neighbours: neighbours.collect(),
        routes: vec![on_link("192.168.100.0/24"), on_link("fd00::/64")],
    };
    dataplane.set_next_hops(&hops).unwrap();
    let owned = families.map(|v6| OwnedAddress {
        addr: addr(v6, VIP),
        kinds: OwnedKinds {
            service: true,
            ..OwnedKinds::default()
        },
        leg: 0,
        group: GroupId::FIRST,
    });
    let services = families
        .into_iter()
        .flat_map(|v6| [Protocol::Tcp, Protocol::Udp].map(|protocol| service(v6, protocol, gue_port)));
    let tables = Tables {
        owned: owned.to_vec(),
        services: services.collect(),
        connected: ["192.168.100.0/24", "fd00::/64"]
            .map(|p| p.parse().unwrap())
            .to_vec(),
        ..Tables::default()
    };
    dataplane.apply(&tables).unwrap();
    let leg = LegAttach {
        ifindex,
        name: "leg0".into(),
        mode: AttachMode::Auto,
    };
    dataplane.attach(&leg).unwrap();
    let lease = dataplane.lease_cell(GroupId::FIRST).unwrap();
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
    lease.write((u64::try_from(now.tv_sec()).unwrap() + 600) * 1_000_000_000);
    (dataplane, lease)
}

fn service(v6: bool, protocol: Protocol, gue_port: Option<u16>) -> ServiceSpec {
    ServiceSpec {
        name: format!("web{protocol:?}{v6}"),
        vip: addr(v6, VIP),
        protocol,
        ports: vec![80..=80],
        mode: Mode::L3Dsr,
        mode_for: Vec::new(),
        tunnel: TunnelSpec {
            gue_port,
            sources: None,
        },
        scheduler: Scheduler::Maglev,
        hairpin: Hairpin::Off,
        persistence: Persistence::default(),
        group: GroupId::FIRST,
        snat: Vec::new(),
        idle_timeout: Duration::from_mins(15),
        limits: LimitsSpec::default(),
        mss_clamp: None,
        per_packet: false,
        on_server_down: OnServerDown::default(),
        sync_after: Some(Duration::ZERO),
        servers: vec![ServerSpec {
            id: ServerId {
                addr: addr(v6, SERVER),
                port: 0,
            },
            weight: 1,
            up: true,
        }],
    }
}

/// A datagram and its answer.
fn asked(drawing: &Drawing, v6: bool, size: usize) {
    let vip = SocketAddr::from((addr(v6, VIP), 80));
    let socket = drawing.server.call(move || UdpSocket::bind(vip).unwrap());
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let answer = drawing.client.call(move || {
        let client = UdpSocket::bind((addr(v6, CLIENT), 0)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.connect(vip).unwrap();
        client.send(&vec![3; size]).unwrap();
        let mut buffer = vec![0; size + 1];
        let (got, from) = socket.recv_from(&mut buffer).unwrap();
        socket.send_to(&buffer[..got], from).unwrap();
        client.recv(&mut buffer).unwrap()
    });
    assert_eq!(answer, size);
}

fn end_to_end(gue_port: Option<u16>) {
    let drawing = Drawing::new();
    let (dataplane, _lease) = drawing.balance(gue_port);
    assert_eq!(
        drawing.upload(false),
        None,
        "nobody takes the packets out of the tunnel"
    );
    let decapsulator = drawing.decapsulate(spec(gue_port)).unwrap();
    for v6 in [false, true] {
        assert_eq!(
            drawing.upload(v6),
            Some(BYTES),
            "{:?}",
            dataplane.counters().unwrap()
        );
        asked(&drawing, v6, 100);
        // In fragments, the server's kernel puts them together.
        asked(&drawing, v6, 4_000);
        let most = 1_500 - if v6 { 40 } else { 20 } - if gue_port.is_some() { 8 } else { 0 };
        let vip = addr(v6, VIP);
        let route = drawing.client.run(&format!("ip route get {vip}"));
        assert!(route.contains(&format!("mtu {most}")), "{route}");
        // What is for the server itself goes its way.
        drawing
            .client
            .run(&format!("ping -n -c 1 -W 2 {}", addr(v6, SERVER)));
    }
    let counters = decapsulator.counters().unwrap();
    assert!(counters["decapsulated"] > 1_000, "{counters:?}");
    assert!(counters["decapsulated_bytes"] > 2 * BYTES as u64, "{counters:?}");
    for (name, count) in &counters {
        assert!(name.starts_with("decapsulated") || *count == 0, "{counters:?}");
    }
    decapsulator.detach().unwrap();
    assert_eq!(drawing.upload(false), None, "detached");
}

#[test]
#[ignore = "needs root"]
fn b71_uploads_reach_a_server_without_a_tunnel_device_by_ipip() {
    end_to_end(None);
}

#[test]
#[ignore = "needs root"]
fn b71_uploads_reach_a_server_without_a_tunnel_device_by_gue() {
    end_to_end(Some(GUE));
}

#[test]
#[ignore = "needs root"]
fn packets_of_others_in_a_tunnel_are_left_to_the_kernel() {
    let drawing = Drawing::new();
    let _balancer = drawing.balance(None);
    let foreign = DecapSpec {
        from: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
        ..spec(None)
    };
    let decapsulator = drawing.decapsulate(foreign).unwrap();
    assert_eq!(drawing.upload(false), None);
    assert!(decapsulator.counters().unwrap()["foreign_source"] > 0);
    drop(decapsulator);
    let elsewhere = DecapSpec {
        vips: vec![addr(false, 101)],
        ..spec(None)
    };
    let decapsulator = drawing.decapsulate(elsewhere).unwrap();
    assert_eq!(drawing.upload(false), None);
    assert!(decapsulator.counters().unwrap()["other_destination"] > 0);
}

#[test]
#[ignore = "needs root"]
fn an_interface_takes_one_program_and_only_good_settings() {
    let drawing = Drawing::new();
    let first = drawing.decapsulate(spec(None)).unwrap();
    assert!(matches!(
        drawing.decapsulate(spec(None)),
        Err(Error::InterfaceTaken { .. })
    ));
    drop(first);
    assert!(matches!(
        drawing.decapsulate(DecapSpec::default()),
        Err(Error::Limit { limit: "vips", .. })
    ));
    assert!(matches!(
        drawing.decapsulate(spec(Some(0))),
        Err(Error::Limit {
            limit: "gue port",
            ..
        })
    ));
}
