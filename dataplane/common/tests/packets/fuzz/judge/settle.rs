//! What the reference leaves nothing open about.

use super::Outcome;
use crate::{
    fuzz::{
        expect::Want,
        read::be16,
        script::hex,
        write::{Sent, sum},
    },
    support::Verdict,
};
use onearm_dataplane_common::counter::Counter;

/// What leaves nothing open.
pub(super) fn settle(want: &Want, o: &Outcome<'_>) -> Result<(), String> {
    match (want, o.verdict) {
        (Want::Pass, Verdict::Pass) => {
            ensure!(o.out == o.frame, "what passes is not untouched");
            Ok(())
        }
        (Want::Drop, Verdict::Drop) => Ok(()),
        (Want::Kept, Verdict::Pass) => asked(o, 1, 0, o.frame),
        (Want::Divide(most, frame), Verdict::Pass) => asked(o, 2, *most, frame),
        (Want::Kept | Want::Divide(..), Verdict::Drop) if o.counted(Counter::HelpLimited) => Ok(()),
        (Want::Limited(_), Verdict::Drop) if o.counted(Counter::RefusalLimited) => Ok(()),
        (Want::Sent(sent) | Want::Limited(sent), Verdict::Transmit | Verdict::Redirect) => {
            same(o.out, o.verdict, sent)
        }
        _ => Err(format!("wanted {}", brief(want))),
    }
}

/// User space gets the frame behind what is wanted.
fn asked(o: &Outcome<'_>, what: u8, most: u16, frame: &[u8]) -> Result<(), String> {
    let header = o.out.get(..20).ok_or("no header for user space")?;
    let [high, low] = most.to_be_bytes();
    let want = [
        &o.frame[..6],
        &o.frame[..6],
        &[0x88, 0xb5, what, 0, high, low, 0, 0],
    ]
    .concat();
    ensure!(header == want, "user space is told {}", hex(header));
    let got = &o.out[20..];
    ensure!(
        got == frame,
        "user space gets another frame:\n got {}\nwant {}",
        hex(got),
        hex(frame)
    );
    Ok(())
}

/// Byte for byte, but for the two ways to write zero.
fn same(out: &[u8], verdict: Verdict, sent: &Sent) -> Result<(), String> {
    ensure!(
        (verdict == Verdict::Redirect) == sent.redirect,
        "by the wrong interface"
    );
    let mut got = out.to_vec();
    if let Some(l3) = sent.renamed.filter(|l3| l3 + 20 <= got.len()) {
        ensure!(
            sum(&got[l3..l3 + 20]).is_multiple_of(0xffff),
            "the outer header's checksum is wrong"
        );
        for at in [l3 + 4, l3 + 10] {
            got[at..at + 2].copy_from_slice(&sent.bytes[at..at + 2]);
        }
    }
    for at in &sent.loose {
        let both =
            |at: usize| be16(&got, at).is_multiple_of(0xffff) && be16(&sent.bytes, at).is_multiple_of(0xffff);
        if *at + 2 <= got.len().min(sent.bytes.len()) && both(*at) {
            got[*at..*at + 2].copy_from_slice(&sent.bytes[*at..*at + 2]);
        }
    }
    ensure!(
        got == sent.bytes,
        "what leaves differs from byte {}:\n got {}\nwant {}",
        got.iter().zip(&sent.bytes).take_while(|(a, b)| a == b).count(),
        hex(&got),
        hex(&sent.bytes)
    );
    Ok(())
}

fn brief(want: &Want) -> String {
    match want {
        Want::Sent(sent) | Want::Limited(sent) => format!("it sent as {}", hex(&sent.bytes)),
        other => format!("{other:?}"),
    }
}
