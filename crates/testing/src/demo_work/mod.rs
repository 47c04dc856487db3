//! A demonstration executor: work that members claim, do and finish, so that a cluster can be watched under faults before
//! there are runs.
//!
//! Owns: its tables ([`schema`]), the member that does the work ([`member`], the program `cluster_member`), what both write
//! down ([`history`]), and who judges it afterwards ([`check`]).
//! Never: trusts a member. What has happened is read from a table that the transactions themselves wrote, some of it by
//! triggers on the cluster's own tables; what a member says of itself is only compared with that.

pub mod check;
pub mod history;
pub mod member;
pub mod schema;
