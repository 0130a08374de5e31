use super::*;
use crate::{name::IfName, state::Leg};

fn watcher(picture: watch::Sender<Picture>, wanted: watch::Receiver<Wanted>) -> Watcher {
    Watcher::open(wanted, picture, watch::channel(Wake::default()).0).unwrap()
}

fn in_runtime(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { test().await });
}

/// Events lost: everything is listed anew, whatever was read before.
#[test]
fn an_overrun_means_that_everything_is_listed_anew() {
    in_runtime(async || {
        let (picture, seen) = watch::channel(Picture::default());
        let (_keep, wanted) = watch::channel(Wanted::default());
        let mut watcher = watcher(picture, wanted);
        assert_eq!(
            watcher.take(Err(io::Error::from_raw_os_error(libc::ENOBUFS))),
            Touched::LOST
        );
        watcher.publish(Touched::ALL);
        assert_eq!(seen.borrow().overruns, 1);
    });
}

/// A datagram another process sent to our port decides nothing.
#[test]
fn messages_that_do_not_come_from_the_kernel_are_not_read() {
    in_runtime(async || {
        let (_keep, wanted) = watch::channel(Wanted::default());
        let mut watcher = watcher(watch::channel(Picture::default()).0, wanted);
        let mut rule = crate::netlink::wire::Message::new(libc::RTM_NEWRULE, 0, &[2; 12]).finish(0);
        watcher.buffer.append(&mut rule.clone());
        assert_eq!(watcher.take(Ok(4711)), Touched::default());
        watcher.buffer.append(&mut rule);
        assert_eq!(watcher.take(Ok(0)), Touched::TABLES);
    });
}

#[test]
fn the_picture_follows_the_legs_asked_for_until_nobody_asks() {
    in_runtime(async || {
        let (picture, mut seen) = watch::channel(Picture::default());
        let (asker, wanted) = watch::channel(Wanted::default());
        let (_stop, stopped) = watch::channel(false);
        let running = tokio::spawn(watcher(picture, wanted).run(stopped));
        let loopback = IfName::loopback();
        asker.send_modify(|wanted| drop(wanted.desired.legs.insert(loopback.clone(), Leg::default())));
        let there = seen
            .wait_for(|picture| picture.legs.contains_key(&loopback))
            .await
            .unwrap();
        assert!(there.legs[&loopback].link.is_some());
        drop(there);
        drop(asker);
        running.await.unwrap();
    });
}

#[test]
fn a_watcher_ends_with_its_stop_channel() {
    in_runtime(async || {
        let (_keep, wanted) = watch::channel(Wanted::default());
        let (stop, stopped) = watch::channel(false);
        drop(stop);
        watcher(watch::channel(Picture::default()).0, wanted)
            .run(stopped)
            .await;
    });
}
