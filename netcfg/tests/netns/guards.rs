//! The guards stop what they must stop, and nothing else.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use onearm_netcfg::{Desired, Kernel, StateDir};

use crate::lab::{Ns, cable, desired, does, in_fresh_namespace, leg, now, sh};

/// `server -- leg0 [node] out0 -- client`, and `x0 -- container` unlisted; the server also holds the VIP, so that a
/// packet forwarded by mistake is answered.
struct Site {
    server: Ns,
    client: Ns,
    container: Ns,
}

fn site() -> Site {
    let (server, client, container) = (Ns::new(), Ns::new(), Ns::new());
    cable(
        "leg0",
        &["10.0.2.1/24", "fd02::1/64"],
        &server,
        "s0",
        &["10.0.2.10/24", "10.0.2.100/24", "fd02::10/64", "fd02::100/64"],
    );
    cable(
        "out0",
        &["10.0.1.1/24", "fd01::1/64"],
        &client,
        "c0",
        &["10.0.1.2/24", "fd01::2/64"],
    );
    cable(
        "x0",
        &["10.0.3.1/24", "fd03::1/64"],
        &container,
        "k0",
        &["10.0.3.2/24", "fd03::2/64"],
    );
    // The VIP is not for the server's own use.
    server.sh("ip -6 addr change fd02::100/64 dev s0 preferred_lft 0");
    server.sh("ip route add default via 10.0.2.1; ip -6 route add default via fd02::1");
    client.sh("ip route add default via 10.0.1.1; ip -6 route add default via fd01::1");
    container.sh("ip route add default via 10.0.3.1; ip -6 route add default via fd03::1");
    sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    Site {
        server,
        client,
        container,
    }
}

fn guarded(refuse_own: bool) -> Desired {
    let servers = leg(&["10.0.2.0/24", "fd02::/64"], &["10.0.2.10"]);
    desired(
        [("leg0", servers), ("out0", leg(&[], &[]))],
        &["10.0.2.100", "fd02::100"],
        refuse_own,
    )
}

fn ping(from: &Ns, to: &str, patience_s: f32) -> bool {
    from.does(&format!("ping -q -c 1 -W {patience_s} {to}"))
}

#[test]
#[ignore = "needs root"]
fn guards_stop_owned_addresses_and_servers_and_let_everything_else_pass() {
    in_fresh_namespace(|| {
        let Site {
            server,
            client,
            container,
        } = site();
        let forbidden = |expected: bool| {
            for (from, to) in [
                (&client, "10.0.2.100"),
                (&client, "fd02::100"),
                (&server, "10.0.1.2"),
                (&server, "fd01::2"),
            ] {
                let patience_s = if expected { 2.0 } else { 0.3 };
                assert_eq!(ping(from, to, patience_s), expected, "to {to}");
            }
        };
        let allowed = || {
            // Local delivery, the node's own traffic, forwarding that is none of our business.
            for (from, to) in [
                (&server, "10.0.2.1"),
                (&server, "fd02::1"),
                (&server, "10.0.1.1"),
                (&client, "10.0.1.1"),
                (&client, "10.0.2.1"),
                (&container, "10.0.1.2"),
                (&container, "fd01::2"),
                (&client, "10.0.3.2"),
            ] {
                assert!(ping(from, to, 2.0), "to {to}");
            }
            for to in ["10.0.2.10", "10.0.1.2", "10.0.3.2", "fd02::10", "fd01::2"] {
                assert!(does(&format!("ping -q -c 1 -W 1 {to}")), "from the node to {to}");
            }
        };
        allowed();
        forbidden(true);
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut kernel = Kernel::open().unwrap();
        for refuse_own in [false, true] {
            kernel.apply(&mut state, &guarded(refuse_own)).unwrap();
            for filter in [0, 1, 2] {
                sh(&format!(
                    "for i in all leg0 out0 x0; do sysctl -qw net.ipv4.conf.$i.rp_filter={filter}; done"
                ));
                allowed();
                forbidden(false);
            }
        }
        // Somebody flips forwarding, as container engines do: nothing leaks (C15).
        sh("sysctl -qw net.ipv4.ip_forward=0; sysctl -qw net.ipv4.ip_forward=1");
        forbidden(false);
        assert!(kernel.undo(&mut state).errors.is_empty());
        forbidden(true);
    });
}

/// M16, B62: on the Active the node's own connection to a VIP is refused at once; on the Standby it goes over the leg.
/// What an owned address sends to the node is received all the same, whatever the reverse-path filter.
#[test]
#[ignore = "needs root"]
fn b62_the_active_refuses_its_own_connections_at_once_and_still_hears_the_vip() {
    in_fresh_namespace(|| {
        let Site { server, .. } = site();
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut kernel = Kernel::open().unwrap();
        let connect = |vip: &str| {
            let (address, start): (SocketAddr, _) = (vip.parse().unwrap(), now());
            let error = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap_err();
            (
                error.raw_os_error().unwrap(),
                start.elapsed() < Duration::from_millis(300),
            )
        };
        let listener = TcpListener::bind("10.0.2.1:7000").unwrap();
        for filter in [0, 1, 2] {
            sh(&format!(
                "for i in all leg0; do sysctl -qw net.ipv4.conf.$i.rp_filter={filter}; done"
            ));
            kernel.apply(&mut state, &guarded(false)).unwrap();
            for vip in ["10.0.2.100:80", "[fd02::100]:80"] {
                assert_eq!(
                    connect(vip),
                    (libc::ECONNREFUSED, true),
                    "Standby to {vip}: the far end answers"
                );
            }
            kernel.apply(&mut state, &guarded(true)).unwrap();
            assert_eq!(
                connect("10.0.2.100:80"),
                (libc::EHOSTUNREACH, true),
                "rp_filter {filter}"
            );
            assert_eq!(connect("[fd02::100]:80"), (libc::EHOSTUNREACH, true));
            assert!(!does("ping -q -c 1 -W 1 10.0.2.100"));
            // A whole connection from the VIP to the node, data in both directions.
            assert!(
                server.does("ping -q -c 1 -W 1 -I 10.0.2.100 10.0.2.1"),
                "rp_filter {filter}"
            );
            let talk = "exec 3<>/dev/tcp/10.0.2.1/7000 && echo hello >&3 && read -r line <&3 && test \"$line\" = hello";
            let script =
                format!("ip route replace 10.0.2.1 dev s0 src 10.0.2.100; timeout 5 bash -c '{talk}'");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, peer) = listener.accept().unwrap();
                    assert_eq!(peer.ip().to_string(), "10.0.2.100");
                    let mut line = [0; 6];
                    std::io::Read::read_exact(&mut stream, &mut line).unwrap();
                    std::io::Write::write_all(&mut stream, &line).unwrap();
                });
                assert!(server.does(&script), "rp_filter {filter}");
            });
        }
    });
}

/// After a take-over the kernel must not go on sending to the former Active.
#[test]
#[ignore = "needs root"]
fn the_former_active_is_forgotten_as_the_owner_but_a_permanent_entry_stays() {
    in_fresh_namespace(|| {
        let _site = site();
        assert!(does("ping -q -c 1 -W 1 10.0.2.100"));
        let known = || sh("ip neigh show 10.0.2.100 dev leg0").contains("lladdr");
        assert!(known());
        let directory = tempfile::tempdir().unwrap();
        let mut state = StateDir::acquire(directory.path()).unwrap();
        let mut kernel = Kernel::open().unwrap();
        kernel.apply(&mut state, &guarded(false)).unwrap();
        assert!(known());
        kernel.apply(&mut state, &guarded(true)).unwrap();
        assert!(!known());
        sh("ip neigh replace 10.0.2.100 lladdr 02:00:00:00:00:99 dev leg0 nud permanent");
        kernel.apply(&mut state, &guarded(true)).unwrap();
        assert!(known());
    });
}
