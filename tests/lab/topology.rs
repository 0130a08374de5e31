//! The classic one-arm drawing, in namespaces.
//!
//! ```text
//!  out 192.168.10.50 ── rt 192.168.100.254 ──┐            ┌── s1 s2 s3  192.168.100.10 .11 .12
//!  rem 192.168.20.10 ──┘                     ├── switch ──┤                (default route: .1)
//!  cl  192.168.100.70  (LAN client) ─────────┤            └── mon  192.168.100.60 (monitor port)
//!                lb1 .2, lb2 .3 (default route: .254) ────┘   VIP .100 and gateway .1 belong to the pair
//! ```
//!
//! With two arms the servers are on a switch of their own, 10.1.0.0/24 and 2001:db8:1::/64, and the nodes between both:
//! `eth1` of each node is 10.1.0.2 and .3, the servers' default route is the pair's 10.1.0.1.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result};

use crate::{
    lab::Lab,
    netns::Namespace,
    switch::{Switch, Variant},
    xdp::PassThrough,
};

/// The VIP of the drawing.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 100);
/// Gateway address of the pair: the servers' default route.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 1);
/// Gateway address of a pair with two arms.
pub const INSIDE_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
/// IPv6 gateway address of a pair with two arms.
pub const INSIDE_GATEWAY6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
/// The router on the segment.
pub const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 168, 100, 254);
/// The client behind the router.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 10, 50);
/// The server behind the router.
pub const REMOTE: Ipv4Addr = Ipv4Addr::new(192, 168, 20, 10);
/// The VIP in a lab with IPv6. All IPv6 addresses have the last number of the IPv4 ones.
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 0x100);
/// IPv6 gateway address of the pair.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x100, 0, 0, 0, 0, 1);
/// The router's link-local address on the segment: next hop of everybody's IPv6 default route but the servers'.
pub const ROUTER_LINK_LOCAL: &str = "fe80::254";
/// Short names of the nodes.
pub const NODES: [&str; 2] = ["lb1", "lb2"];
/// Short names of the servers of the segment.
pub const SERVERS: [&str; 3] = ["s1", "s2", "s3"];

/// Everything with a port on the switch: short name and last byte of its address and MAC.
const PORTS: [(&str, u8); 8] = [
    ("lb1", 2),
    ("lb2", 3),
    ("s1", 10),
    ("s2", 11),
    ("s3", 12),
    ("rt", 254),
    ("mon", 60),
    ("cl", 70),
];

/// What may differ between two labs of this drawing.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "what a drawing may have, each by itself"
)]
pub struct Options {
    /// How the switch learns.
    pub variant: Variant,
    /// Whether a cable (`eth1` on both, 10.77.0.1 and .2) links the nodes besides the switch.
    pub peer_link: bool,
    /// Whether the nodes' kernels forward IPv4.
    pub forwarding: bool,
    /// Whether everybody has an IPv6 address beside the IPv4 one.
    pub ipv6: bool,
    /// Where the servers are.
    pub arms: Arms,
    /// VLAN of the segment: the nodes' ports of the switch are trunks that carry it tagged, and each node has the VLAN device
    /// `eth0.N`; of two arms the inside is VLAN N + 1 on `eth1`. Needs [`vlans_exist`].
    pub vlan: Option<u16>,
    /// Whether what a generator sends ends at the switch once the node has sent it on.
    pub sink: bool,
}

/// Legs of a node that carry balanced traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arms {
    /// Clients and servers are on one segment.
    #[default]
    One,
    /// Servers are on a switch of their own, with the nodes between.
    Two,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// The drawing, built.
#[derive(Debug)]
pub struct OneArm {
    lab: Lab,
    switch: Switch,
    inside: Option<Switch>,
    vlan: Option<u16>,
    spaces: Vec<(&'static str, Namespace)>,
    pass: PassThrough,
    ipv6: bool,
}

/// Whether this kernel can make VLAN devices and bridges that know VLANs.
///
/// # Errors
/// When no namespace can be made to try it in.
pub fn vlans_exist() -> Result<bool> {
    let lab = Lab::new()?;
    let ns = lab.namespace("vlan")?;
    Ok(ns.run("ip link add br0 type bridge vlan_filtering 1").is_ok()
        && ns.run("ip link add link br0 name v1 type vlan id 1").is_ok())
}

/// Address of node `index` on the peer link.
pub fn link_address(index: usize) -> Ipv4Addr {
    [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)][index % 2]
}

/// Address of a port of the segment.
///
/// # Panics
/// When `short` is no name of the drawing: a mistake in a scenario.
pub fn address(short: &str) -> Ipv4Addr {
    match short {
        "out" => OUTSIDE,
        "rem" => REMOTE,
        _ => Ipv4Addr::new(192, 168, 100, last_byte(short)),
    }
}

/// Address of a node or server on the inside of two arms.
///
/// # Panics
/// As [`address`].
pub fn inside_address(short: &str) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, last_byte(short))
}

/// IPv6 address of a node or server on the inside of two arms.
///
/// # Panics
/// As [`address`].
pub fn inside_address6(short: &str) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, decimal_digits(last_byte(short)))
}

/// MAC of a node on the inside of two arms: 02:00:00:00:03 and the last byte of its address.
///
/// # Panics
/// As [`address`].
pub fn inside_mac(short: &str) -> [u8; 6] {
    [2, 0, 0, 0, 3, last_byte(short)]
}

/// IPv6 address of a port of the segment or of a host behind the router: 2001:db8:100::/64, 2001:db8:10::/64,
/// 2001:db8:20::/64, and the digits of the last byte of [`address`].
///
/// # Panics
/// As [`address`].
pub fn address6(short: &str) -> Ipv6Addr {
    let [_, _, net, last] = address(short).octets();
    Ipv6Addr::new(
        0x2001,
        0xdb8,
        decimal_digits(net),
        0,
        0,
        0,
        0,
        decimal_digits(last),
    )
}

/// The number that looks in hexadecimal as `byte` does in decimal.
fn decimal_digits(byte: u8) -> u16 {
    u16::from_str_radix(&byte.to_string(), 16).expect("decimal digits are hexadecimal ones")
}

/// Link-local address of a port of the segment, as the kernel makes it from the MAC (RFC 4291, appendix A).
///
/// # Panics
/// As [`address`].
pub fn link_local(short: &str) -> Ipv6Addr {
    let mac = mac(short).map(u16::from);
    let pair = |high, low| high << 8 | low;
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        pair(mac[0] ^ 2, mac[1]),
        pair(mac[2], 0xff),
        pair(0xfe, mac[3]),
        pair(mac[4], mac[5]),
    )
}

/// MAC of a host: 02:00:00:00:00 and the last byte of its address on the segment, 02:00:00:00:01:… behind the router.
///
/// # Panics
/// As [`address`].
pub fn mac(short: &str) -> [u8; 6] {
    match short {
        "out" | "rem" => [2, 0, 0, 0, 1, address(short).octets()[2]],
        _ => [2, 0, 0, 0, 0, last_byte(short)],
    }
}

/// MAC of the router's end of the cable to the outside host `short`.
///
/// # Panics
/// As [`address`].
pub fn router_mac(short: &str) -> [u8; 6] {
    [2, 0, 0, 0, 2, address(short).octets()[2]]
}

fn last_byte(short: &str) -> u8 {
    PORTS
        .iter()
        .find(|(name, _)| *name == short)
        .map(|(_, b)| *b)
        .expect("a name of the drawing")
}

fn leg_name(vlan: Option<u16>, short: &str) -> String {
    match vlan {
        Some(vlan) if NODES.contains(&short) => format!("eth0.{vlan}"),
        _ => "eth0".to_owned(),
    }
}

/// Interface of a node that has its address on the inside.
fn inside_leg_name(vlan: Option<u16>) -> String {
    vlan.map_or_else(|| "eth1".to_owned(), |vlan| format!("eth1.{}", vlan + 1))
}

fn add_vlan(ns: &Namespace, parent: &str, vlan: u16) -> Result<()> {
    ns.run(&format!(
        "ip link add link {parent} name {parent}.{vlan} type vlan id {vlan}"
    ))?;
    ns.run(&format!("ip link set {parent}.{vlan} up")).map(drop)
}

/// A MAC in colon form.
pub fn colons(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

impl OneArm {
    /// Builds it.
    ///
    /// # Errors
    /// When a part cannot be made; what was made goes with the [`Lab`].
    pub fn build(options: Options) -> Result<Self> {
        let lab = Lab::new()?;
        let switch = Switch::create(lab.namespace("sw")?, options.variant)?;
        if let Some(vlan) = options.vlan {
            switch.set_vlan(vlan)?;
        }
        let inside = if options.arms == Arms::Two {
            let inside = Switch::create(lab.namespace("in")?, options.variant)?;
            if let Some(vlan) = options.vlan {
                inside.set_vlan(vlan + 1)?;
            }
            Some(inside)
        } else {
            None
        };
        let mut spaces = Vec::new();
        for (short, byte) in PORTS {
            let ns = lab.namespace(short)?;
            if let Some(inside) = inside.as_ref().filter(|_| SERVERS.contains(&short)) {
                inside.plug(short, &ns, "eth0", &colons(mac(short)))?;
                ns.run(&format!("ip addr add {}/24 dev eth0", inside_address(short)))?;
                ns.run(&format!("ip route add default via {INSIDE_GATEWAY}"))?;
                spaces.push((short, ns));
                continue;
            }
            switch.plug(short, &ns, "eth0", &colons(mac(short)))?;
            if let Some(inside) = inside.as_ref().filter(|_| NODES.contains(&short)) {
                inside.plug(short, &ns, "eth1", &colons(inside_mac(short)))?;
                if let Some(vlan) = options.vlan {
                    add_vlan(&ns, "eth1", vlan + 1)?;
                    inside.trunk(short, vlan + 1)?;
                }
                let leg = inside_leg_name(options.vlan);
                ns.run(&format!("ip addr add {}/24 dev {leg}", inside_address(short)))?;
            }
            if let Some(vlan) = options.vlan.filter(|_| NODES.contains(&short)) {
                add_vlan(&ns, "eth0", vlan)?;
                switch.trunk(short, vlan)?;
            }
            let leg = leg_name(options.vlan, short);
            ns.run(&format!("ip addr add 192.168.100.{byte}/24 dev {leg}"))?;
            let router = match short {
                "rt" => None,
                "s1" | "s2" | "s3" => Some(GATEWAY),
                _ => Some(ROUTER),
            };
            if let Some(router) = router {
                ns.run(&format!("ip route add default via {router}"))?;
            }
            spaces.push((short, ns));
        }
        let ports = NODES.map(Switch::port);
        let mut pass = if options.sink {
            PassThrough::load_sink()?
        } else {
            PassThrough::load()?
        };
        pass.attach(switch.ns(), &ports)?;
        if let Some(inside) = &inside {
            pass.attach(inside.ns(), &ports)?;
        }
        let mut built = Self {
            lab,
            switch,
            inside,
            vlan: options.vlan,
            spaces,
            pass,
            ipv6: options.ipv6,
        };
        built.add_outside("out", OUTSIDE)?;
        built.add_outside("rem", REMOTE)?;
        let router = built.ns("rt");
        router.sysctl("net.ipv4.ip_forward", "1")?;
        router.sysctl("net.ipv4.conf.all.send_redirects", "0")?;
        router.sysctl("net.ipv4.conf.eth0.send_redirects", "0")?;
        for node in NODES {
            built
                .ns(node)
                .sysctl("net.ipv4.ip_forward", if options.forwarding { "1" } else { "0" })?;
        }
        if options.peer_link {
            built.add_peer_link()?;
        }
        if options.ipv6 {
            built.add_ipv6()?;
        }
        Ok(built)
    }

    /// A host behind the router, on a cable of its own.
    fn add_outside(&mut self, short: &'static str, addr: Ipv4Addr) -> Result<()> {
        let ns = self.lab.namespace(short)?;
        let router = self.ns("rt");
        let [a, b, c, _] = addr.octets();
        router.run(&format!(
            "ip link add to-{short} address {} type veth peer name eth0 address {} netns {}",
            colons(router_mac(short)),
            colons(mac(short)),
            ns.name()
        ))?;
        for (side, dev) in [(router, format!("to-{short}")), (&ns, "eth0".to_owned())] {
            side.run(&format!("ethtool -K {dev} tx off"))?;
            side.run(&format!("ip link set {dev} up"))?;
        }
        router.run(&format!("ip addr add {a}.{b}.{c}.1/24 dev to-{short}"))?;
        ns.run(&format!("ip addr add {addr}/24 dev eth0"))?;
        ns.run(&format!("ip route add default via {a}.{b}.{c}.1"))?;
        self.spaces.push((short, ns));
        Ok(())
    }

    /// Gives every host its IPv6 addresses and routes.
    fn add_ipv6(&self) -> Result<()> {
        let router = self.ns("rt");
        for (short, ns) in &self.spaces {
            for (key, value) in [("accept_ra", "0"), ("disable_ipv6", "0")] {
                for which in ["default", "all", "eth0"] {
                    ns.sysctl(&format!("net.ipv6.conf.{which}.{key}"), value)?;
                }
            }
            let is_inside = self.inside.is_some() && SERVERS.contains(short);
            let address = if is_inside {
                inside_address6(short)
            } else {
                address6(short)
            };
            let leg = self.leg(short);
            ns.run(&format!("ip addr add {address}/64 dev {leg} nodad"))?;
        }
        if self.inside.is_some() {
            for node in NODES {
                let leg = inside_leg_name(self.vlan);
                let address = inside_address6(node);
                self.ns(node)
                    .run(&format!("ip addr add {address}/64 dev {leg} nodad"))?;
            }
        }
        let gateway = if self.inside.is_some() {
            INSIDE_GATEWAY6
        } else {
            GATEWAY6
        };
        router.run(&format!("ip addr add {ROUTER_LINK_LOCAL}/64 dev eth0 nodad"))?;
        router.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        for short in ["out", "rem"] {
            let mut gateway = address6(short).segments();
            gateway[7] = 1;
            let gateway = Ipv6Addr::from(gateway);
            router.run(&format!("ip addr add {gateway}/64 dev to-{short} nodad"))?;
            self.ns(short)
                .run(&format!("ip -6 route add default via {gateway}"))?;
        }
        for (short, byte) in PORTS {
            let line = match byte {
                254 => continue,
                10..=12 => format!("ip -6 route add default via {gateway}"),
                _ => format!(
                    "ip -6 route add default via {ROUTER_LINK_LOCAL} dev {}",
                    self.leg(short)
                ),
            };
            self.ns(short).run(&line)?;
        }
        Ok(())
    }

    /// Interface of `short` that has its address on the segment.
    fn leg(&self, short: &str) -> String {
        leg_name(self.vlan, short)
    }

    fn add_peer_link(&self) -> Result<()> {
        let (one, two) = (self.ns("lb1"), self.ns("lb2"));
        one.run(&format!(
            "ip link add eth1 type veth peer name eth1 netns {}",
            two.name()
        ))?;
        for (ns, address) in [(one, link_address(0)), (two, link_address(1))] {
            ns.run(&format!("ip addr add {address}/24 dev eth1"))?;
            ns.run("ip link set eth1 up")?;
        }
        Ok(())
    }

    /// A namespace by its short name.
    ///
    /// # Panics
    /// When there is none of that name: a mistake in a scenario.
    pub fn ns(&self, short: &str) -> &Namespace {
        self.spaces
            .iter()
            .find(|(name, _)| *name == short)
            .map(|(_, ns)| ns)
            .expect("a name of the drawing")
    }

    /// Short names of all namespaces but the switch's.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.spaces.iter().map(|(name, _)| *name)
    }

    /// Whether everybody has an IPv6 address.
    pub fn has_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Frames of generators that ended at the switch.
    ///
    /// # Errors
    /// When the lab was built without a sink.
    pub fn sunk(&self) -> Result<u64> {
        self.pass.sunk()
    }

    /// The switch.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// The switch of the inside, where there are two arms.
    pub fn inside(&self) -> Option<&Switch> {
        self.inside.as_ref()
    }

    /// The holder of the prefix, the run folder and the teardown.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Takes the leg of node `short` away, cable and port with it.
    ///
    /// # Errors
    /// When `ip link` refuses.
    pub fn remove_leg(&self, short: &str) -> Result<()> {
        self.ns(short).run("ip link del eth0").map(drop)
    }

    /// Gives node `short` a new leg of the old name and MAC, with a new index, down and without address.
    ///
    /// # Errors
    /// When a part cannot be made.
    pub fn new_leg(&mut self, short: &'static str) -> Result<()> {
        let ns = self.ns(short).clone();
        self.switch.plug(short, &ns, "eth0", &colons(mac(short)))?;
        ns.run("ip link set eth0 down")?;
        self.pass.attach(self.switch.ns(), &[Switch::port(short)])
    }

    /// Gives the leg of node `short` its address and default route.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn address_leg(&self, short: &str) -> Result<()> {
        self.ns(short)
            .run(&format!("ip addr add {}/24 dev eth0", address(short)))?;
        self.default_route(short)
    }

    /// Gives node `short` its default route again, which goes when its leg goes down.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn default_route(&self, short: &str) -> Result<()> {
        self.ns(short)
            .run(&format!("ip route replace default via {ROUTER}"))
            .map(drop)
    }

    /// Makes every host forget what it knows of the pair's addresses.
    ///
    /// # Errors
    /// When `ip neigh` fails.
    pub fn forget_neighbours(&self) -> Result<()> {
        for short in ["rt", "s1", "s2", "s3", "cl", "mon"] {
            self.ns(short).run("ip neigh flush dev eth0").context("flush")?;
        }
        Ok(())
    }
}
