//! Drain by SIGUSR1, orderly stop by SIGTERM and SIGINT, and signals that must do no harm.

use rustix::process::{Pid, Signal, kill_process};
use testing::client::Client;
use testing::process::{Address, free_port, wait_until};

use super::{Mode, in_both_modes};

in_both_modes!(drain_refuses_only_put_and_is_shown);
fn drain_refuses_only_put_and_is_shown(mode: Mode) {
    let mut server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 60 1\r\na\r\nput 0 0 60 1\r\nb\r\n", "INSERTED 1\r\nINSERTED 2\r\n");
    client.check_stats("stats", &[("draining", "false")]);
    server.signal(Signal::USR1);
    wait_until("draining", || client.stat("stats", "draining") == "true");
    client.check("put 0 0 60 1\r\na\r\n", "DRAINING\r\n");
    client.check(
        "reserve\r\ntouch 1\r\nrelease 1 0 0\r\nreserve\r\nbury 1 0\r\nkick 1\r\npeek-ready\r\nuse a\r\nwatch a\r\ndelete 1\r\nreserve-with-timeout 0\r\n",
        "RESERVED 1 1\r\na\r\nTOUCHED\r\nRELEASED\r\nRESERVED 1 1\r\na\r\nBURIED\r\nKICKED 1\r\nFOUND 1 1\r\na\r\nUSING a\r\nWATCHING 2\r\nDELETED\r\nRESERVED 2 1\r\nb\r\n",
    );
    // On connections made later too, and a second signal does not end it.
    server.check("put 0 0 60 1\r\na\r\n", "DRAINING\r\n");
    server.signal(Signal::USR1);
    server.check("put 0 0 60 1\r\na\r\n", "DRAINING\r\n");
    client.check_stats("stats", &[("total-jobs", "2"), ("draining", "true")]);
}

in_both_modes!(a_restart_ends_drain);
fn a_restart_ends_drain(mode: Mode) {
    let folder = testing::process::Folder::new();
    let launch = mode.tubes().log_in(folder.path());
    let mut server = launch.start();
    server.signal(Signal::USR1);
    let mut client = server.connect();
    wait_until("draining", || client.stat("stats", "draining") == "true");
    assert_eq!(server.terminate().code(), Some(0));
    let server = launch.start();
    server.connect().check_stats("stats", &[("draining", "false")]);
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
}

in_both_modes!(a_put_whose_body_comes_during_drain_is_refused);
fn a_put_whose_body_comes_during_drain_is_refused(mode: Mode) {
    let mut server = mode.server();
    let (mut slow, mut monitor) = (server.connect(), server.connect());
    slow.send("put 0 0 60 5\r\nhe");
    server.check("list-tube-used\r\n", "USING default\r\n");
    server.signal(Signal::USR1);
    wait_until("draining", || monitor.stat("stats", "draining") == "true");
    slow.check("llo\r\n", "DRAINING\r\n");
}

in_both_modes!(sigterm_and_sigint_stop_in_order_with_status_0);
fn sigterm_and_sigint_stop_in_order_with_status_0(mode: Mode) {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = testing::process::Folder::new();
        for launch in [mode.tubes(), mode.tubes().log_in(folder.path()), mode.tubes().called_beanstalkd()] {
            let mut server = launch.start();
            let (mut waiting, mut client) = (server.connect(), server.connect());
            waiting.send("reserve\r\n");
            super::wait_for_waiting(&mut client, 1);
            server.signal(signal);
            let status = server.wait();
            assert_eq!(status.code(), Some(0), "{}", server.stderr());
            // No unsolicited bytes on the way out.
            waiting.expect_end();
            client.expect_end();
        }
    }
}

in_both_modes!(it_stops_in_order_as_the_first_process_of_a_namespace);
fn it_stops_in_order_as_the_first_process_of_a_namespace(mode: Mode) {
    let port = free_port();
    let address = Address::Tcp((std::net::Ipv4Addr::LOCALHOST, port).into());
    let mut server = mode
        .tubes()
        .through(["unshare", "--pid", "--fork", "--kill-child"])
        .with(["-l", "127.0.0.1", "-p", &port.to_string()])
        .on_given_address(address.clone())
        .spawn_only();
    let mut client = None;
    wait_until("the server listens", || {
        client = Client::connect(&address).ok();
        client.is_some()
    });
    let mut client = client.expect("connected");
    client.check_stats("stats", &[("pid", "1")]);
    let children = format!("/proc/{0}/task/{0}/children", server.pid());
    let child = std::fs::read_to_string(children).expect("children of unshare");
    let child = child.trim().parse().ok().and_then(Pid::from_raw).expect("one child");
    kill_process(child, Signal::TERM).expect("signal to the server");
    // unshare ends with the status of what it ran.
    assert_eq!(server.wait().code(), Some(0));
    client.expect_end();
}

in_both_modes!(sigpipe_is_ignored);
fn sigpipe_is_ignored(mode: Mode) {
    let server = mode.server();
    let ignored = u64::from_str_radix(&server.status("SigIgn"), 16).expect("a mask");
    assert_ne!(ignored & (1 << (13 - 1)), 0, "SigIgn {ignored:x}");
    // Clients that go away with answers under way.
    for _ in 0..50 {
        let mut client = server.connect();
        client.send("stats\r\n".repeat(200));
        drop(client);
    }
    server.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
}

in_both_modes!(a_stopped_and_continued_server_goes_on);
fn a_stopped_and_continued_server_goes_on(mode: Mode) {
    let mut server = mode.server();
    let mut client = server.connect();
    client.check("put 0 0 1 1\r\na\r\nreserve\r\n", "INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    server.signal_each(Signal::STOP);
    wait_until("stopped", || server.statuses("State").iter().all(|state| state.starts_with('T')));
    client.send("list-tube-used\r\n");
    client.expect_silence(std::time::Duration::from_millis(1200));
    server.signal_each(Signal::CONT);
    client.expect("USING default\r\n");
    // What became due meanwhile is due at once.
    wait_until("expired", || client.stat("stats", "job-timeouts") == "1");
}

in_both_modes!(the_port_is_free_again_right_after_the_end);
fn the_port_is_free_again_right_after_the_end(mode: Mode) {
    let port = free_port();
    let address = Address::Tcp((std::net::Ipv4Addr::LOCALHOST, port).into());
    let launch = mode.tubes().with(["-l", "127.0.0.1", "-p", &port.to_string()]).on_given_address(address);
    for _ in 0..3 {
        let mut server = launch.start();
        // A connection that the server closes first leaves its port in a waiting state of the kernel.
        let mut client = server.connect();
        client.check("put 0 0 60 1\r\na\r\n", "INSERTED 1\r\n");
        server.kill();
        client.expect_end();
    }
}
