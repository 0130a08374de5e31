//! The egress gate: a clsact filter on a leg that drops ARP and packets of an owned sender without a valid lease.
//!
//! Unlike an XDP link the filter outlives the process, so everything put on an interface is reported in a
//! [`GateRecord`] for the journal, and [`remove`] works from the record alone.

use std::io;

use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle as NlHandle, TcMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Name of the filter as `tc filter show` prints it, and of the program.
pub const FILTER_NAME: &str = "egress_gate";
/// First of all filters, so that none before it lets a packet go.
const PRIORITY: u16 = 1;
/// `ETH_P_ALL`.
const ALL_PROTOCOLS: u16 = 3;
/// Our mark in the filter's handle.
const HANDLE: TcHandle = TcHandle::new(0x6f6e, 0x6561);

/// What was put on an interface; enough to take it away again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateRecord {
    /// Kernel interface index.
    pub ifindex: u32,
    /// Interface name at the time.
    pub name: String,
    /// The clsact qdisc was not there before.
    pub qdisc_added: bool,
}

fn failed(name: &str, operation: &'static str, source: io::Error) -> Error {
    Error::EgressGate {
        interface: name.to_owned(),
        operation,
        source,
    }
}

fn tc_errno(error: &TcError) -> io::Error {
    match error {
        TcError::NetlinkError(e) => e.raw_os_error().map(io::Error::from_raw_os_error),
        TcError::IoError(e) => e.raw_os_error().map(io::Error::from_raw_os_error),
        _ => None,
    }
    .unwrap_or_else(|| io::Error::other(error.to_string()))
}

fn program_errno(error: ProgramError) -> io::Error {
    match error {
        ProgramError::TcError(e) => tc_errno(&e),
        ProgramError::NetlinkError(e) => e
            .raw_os_error()
            .map_or_else(|| io::Error::other(e), io::Error::from_raw_os_error),
        other => io::Error::other(other),
    }
}

/// What putting the gate on an interface will add, to be journalled before it is done: a process killed in between must
/// not leave a qdisc that nobody knows to be ours.
///
/// # Errors
/// [`Error::EgressGate`] if the interface cannot be asked.
pub fn intended(ifindex: u32, name: &str) -> Result<GateRecord> {
    let mut message = TcMessage::with_index(interface(ifindex, name)?);
    message.header.parent = NlHandle::CLSACT;
    message.header.handle = CLSACT;
    // The acknowledgement says it; the kernel sends the qdisc itself to listeners only.
    let is_there = match ask(RouteNetlinkMessage::GetQueueDiscipline(message), NLM_F_ACK) {
        Ok(_) => true,
        Err(error) if is_gone(&error) => false,
        Err(source) => return Err(failed(name, "ask for the clsact qdisc", source)),
    };
    Ok(GateRecord {
        ifindex,
        name: name.to_owned(),
        qdisc_added: !is_there,
    })
}

/// Whether our filter is on the interface; somebody else may have taken it away, or the qdisc with it.
///
/// # Errors
/// [`Error::EgressGate`] if the interface cannot be asked.
pub fn is_present(ifindex: u32, name: &str) -> Result<bool> {
    match ask(
        RouteNetlinkMessage::GetTrafficFilter(our_filter(ifindex, name)?),
        NLM_F_ACK,
    ) {
        Ok(_) => Ok(true),
        Err(error) if is_gone(&error) => Ok(false),
        Err(source) => Err(failed(name, "ask for the filter", source)),
    }
}

/// Puts the filter on the interface. A filter of ours that an earlier process left behind is replaced.
pub(crate) fn add(program: &mut SchedClassifier, ifindex: u32, name: &str) -> Result<GateRecord> {
    let qdisc_added = match tc::qdisc_add_clsact(name) {
        Ok(()) => true,
        Err(error) => {
            let source = tc_errno(&error);
            if source.raw_os_error() != Some(libc::EEXIST) {
                return Err(failed(name, "add the clsact qdisc", source));
            }
            false
        }
    };
    let record = GateRecord {
        ifindex,
        name: name.to_owned(),
        qdisc_added,
    };
    match attach(program, name) {
        Ok(()) => Ok(record),
        Err(source) if source.raw_os_error() == Some(libc::EEXIST) => {
            remove_filter(ifindex, name)?;
            attach(program, name).map_err(|source| failed(name, "add the filter", source))?;
            Ok(record)
        }
        Err(source) => {
            if let Err(error) = remove(&record) {
                tracing::warn!(ifname = name, %error, "clsact qdisc left behind");
            }
            Err(failed(name, "add the filter", source))
        }
    }
}

fn attach(program: &mut SchedClassifier, name: &str) -> io::Result<()> {
    let options = NlOptions {
        priority: PRIORITY,
        handle: HANDLE,
        classid: None,
    };
    let id = program
        .attach_with_options(name, TcAttachType::Egress, TcAttachOptions::Netlink(options))
        .map_err(program_errno)?;
    // The filter is taken away through its record, also after a crash: aya must not do it on drop.
    let link: SchedClassifierLink = program.take_link(id).map_err(program_errno)?;
    std::mem::forget(link);
    Ok(())
}

/// Takes the filter away, and the qdisc if it was ours and nobody else has put a filter on it since. What is gone
/// already (with the interface, by hand) is no error; call it on what the journal holds after a crash.
///
/// # Errors
/// [`Error::EgressGate`] with the operation that failed.
pub fn remove(record: &GateRecord) -> Result<()> {
    let name = &record.name;
    remove_filter(record.ifindex, name)?;
    if !record.qdisc_added || filters(record.ifindex).map_err(|e| failed(name, "list filters", e))? > 0 {
        return Ok(());
    }
    let mut message = TcMessage::with_index(interface(record.ifindex, name)?);
    message.header.parent = NlHandle::CLSACT;
    message.header.handle = CLSACT;
    message.attributes.push(TcAttribute::Kind("clsact".to_owned()));
    match ask(RouteNetlinkMessage::DelQueueDiscipline(message), NLM_F_ACK) {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(failed(name, "delete the clsact qdisc", source)),
    }
}

/// Handle of the clsact qdisc.
const CLSACT: NlHandle = NlHandle {
    major: 0xffff,
    minor: 0,
};
/// Parent of egress filters on clsact.
const EGRESS: NlHandle = NlHandle {
    major: 0xffff,
    minor: 0xfff3,
};
/// Parent of ingress filters on clsact.
const INGRESS: NlHandle = NlHandle {
    major: 0xffff,
    minor: 0xfff2,
};

fn interface(ifindex: u32, name: &str) -> Result<i32> {
    i32::try_from(ifindex).map_err(|_| {
        failed(
            name,
            "use the interface index",
            io::Error::from_raw_os_error(libc::ENODEV),
        )
    })
}

fn our_filter(ifindex: u32, name: &str) -> Result<TcMessage> {
    let mut message = TcMessage::with_index(interface(ifindex, name)?);
    message.header.parent = EGRESS;
    message.header.handle = NlHandle::from(u32::from(HANDLE));
    message.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS.to_be());
    message.attributes.push(TcAttribute::Kind("bpf".to_owned()));
    Ok(message)
}

fn remove_filter(ifindex: u32, name: &str) -> Result<()> {
    let message = our_filter(ifindex, name)?;
    match ask(RouteNetlinkMessage::DelTrafficFilter(message), NLM_F_ACK) {
        Ok(_) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(source) => Err(failed(name, "delete the filter", source)),
    }
}

/// Number of filter messages (a filter chain counts too) on both sides of the interface's clsact qdisc.
fn filters(ifindex: u32) -> io::Result<usize> {
    let mut count = 0;
    for parent in [INGRESS, EGRESS] {
        let mut message = TcMessage::with_index(i32::try_from(ifindex).map_err(io::Error::other)?);
        message.header.parent = parent;
        count += match ask(RouteNetlinkMessage::GetTrafficFilter(message), NLM_F_DUMP) {
            Ok(answers) => answers,
            Err(error) if is_gone(&error) => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(count)
}

fn is_gone(error: &io::Error) -> bool {
    // EINVAL: no clsact qdisc to look under.
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENODEV | libc::EINVAL)
    )
}

/// Sends one request and returns how many messages other than acknowledgements came back. Answers are counted, not
/// parsed: attributes of filters we do not know must not fail us.
fn ask(request: RouteNetlinkMessage, flags: u16) -> io::Result<usize> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut answers = 0;
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = datagram.as_slice();
        while let Some((kind, payload, next)) = split(rest) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(answers),
                libc::NLMSG_ERROR => {
                    let code = payload
                        .first_chunk::<4>()
                        .map_or(-libc::EBADMSG, |c| i32::from_ne_bytes(*c));
                    return if code == 0 {
                        Ok(answers)
                    } else {
                        Err(io::Error::from_raw_os_error(-code))
                    };
                }
                _ => answers += 1,
            }
            rest = next;
        }
    }
}

/// First netlink message of a datagram: type, payload, what follows.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(*bytes.first_chunk::<4>()?) as usize;
    let kind = u16::from_ne_bytes([*bytes.get(4)?, *bytes.get(5)?]);
    let payload = bytes.get(16..len)?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, payload, next))
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_truncated_answer_is_no_message() {
        let mut message = [0_u8; 20];
        message[0] = 20;
        message[4] = 3;
        assert_eq!(split(&message), Some((3, &[0, 0, 0, 0][..], &[][..])));
        for len in 0..20 {
            assert_eq!(split(&message[..len]), None, "length {len}");
        }
        message[0] = 8; // shorter than its own header
        assert_eq!(split(&message), None);
    }
}
