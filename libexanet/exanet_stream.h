/* libexanet: streams, connections between processes that are used like those of TCP: bytes in both directions, in
 * order, with back-pressure. They are those of Go's package stream. See exanet_stream(3) and docs/streams.md.
 *
 * Functions may be called by any thread, but exanet_stream_close and exanet_listener_close only when no other call
 * with that handle is in progress and none follows. exanet_close ends all streams and listeners of the attachment
 * and makes their handles invalid. In a forked child all functions return -EPERM.
 *
 * A function returns 0 or a number that is not negative, or a negative errno; exanet_error() then says what
 * happened and what to do. A timeout is in milliseconds; -1: none; 0: the call does not wait. -EAGAIN: nothing was
 * there before the timeout. -ENOTCONN: the attachment has ended. */
#ifndef EXANET_STREAM_H
#define EXANET_STREAM_H

#include <sys/types.h>
#include <sys/uio.h>

#include "exanet.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct exanet_stream exanet_stream;
typedef struct exanet_listener exanet_listener;

/* Listens on a port of this process, 1 and up; 0: one that is free, which exanet_listener_address returns.
 * -EADDRINUSE: another listener has the port. */
int exanet_listen(exanet *, uint32_t port, exanet_listener **);
/* Returns the address in its text form, "exanet:NODE/INTERFACE/PORT". A size of 64 is enough. */
int exanet_listener_address(const exanet_listener *, char *text, size_t size);
int exanet_accept(exanet_listener *, exanet_stream **, int timeout);
/* Resets the connections that were not accepted. */
int exanet_listener_close(exanet_listener *);

/* Connects to an address. With timeout 0 it returns at once: until the connection is open, calls that send and
 * receive wait, or return -EAGAIN; after it has failed they return why. -EINVAL: the text is no address.
 * -ECONNREFUSED: nobody listens there, or no process that admits this one has the interface. -ETIMEDOUT: there was
 * no answer for 5 seconds, in which pfd was not stopped, or before the timeout. A process may connect to itself. */
int exanet_connect(exanet *, const char *address, exanet_stream **, int timeout);

/* Sends bytes: all of them, or as many as fit before the timeout, and returns their number. The bytes are copied.
 * exanet_stream_sendv takes them from n places, and sends them as one span if they fit. -EPIPE: the peer has closed
 * the connection, or exanet_stream_shutdown was called. -ECONNRESET: the connection has failed. */
ssize_t exanet_stream_send(exanet_stream *, const void *, size_t, int timeout);
ssize_t exanet_stream_sendv(exanet_stream *, const struct iovec *, int n, int timeout);
/* Receives at least one byte and at most size, and returns the number; 0: the peer sends no more. Bytes that arrived
 * before the connection failed are returned first. */
ssize_t exanet_stream_recv(exanet_stream *, void *, size_t size, int timeout);
/* Ends the sending direction. */
int exanet_stream_shutdown(exanet_stream *);
/* Closes the stream, and returns once all that was sent is in the peer's memory. -ETIMEDOUT: that has taken more
 * than 2 seconds; the rest is sent while the process runs. The handle is invalid in any case. */
int exanet_stream_close(exanet_stream *);
/* Returns the process at the other end, with address and length 0: for exanet_send, and to compare. */
int exanet_stream_peer(const exanet_stream *, struct exanet_remote *);

/* Returns a descriptor for poll(2) or another event loop, always the same, for all streams and listeners of the
 * attachment. It is readable once something may have changed since the last exanet_stream_arm, and sometimes
 * although nothing has; ends of the program's own transfers and messages make it readable, too. The program arms,
 * then calls what may have something to do with timeout 0, and waits for the descriptor only if nothing had. It
 * reads nothing from it and does not close it. */
int exanet_stream_fd(exanet *);
int exanet_stream_arm(exanet *);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
