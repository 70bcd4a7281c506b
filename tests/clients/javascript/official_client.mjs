/**
 * A program for the official JavaScript client: `node official_client.mjs URL`, beside a node_modules that has `queen-mq`.
 *
 * It uses the client as its users do and throws when something is not as they expect. Each step works on a queue of its
 * own, and prints its name when it is done.
 */

import assert from 'node:assert/strict'
import { Queen } from 'queen-mq'

const numbers = (messages) => messages.map((message) => message.data.n)
const items = (...values) => values.map((n) => ({ data: { n } }))

async function configure(queen) {
  const options = { leaseTime: 45, retryLimit: 7, priority: 3 }
  const result = await queen.queue('configured').namespace('shop').task('bills').config(options).create()
  assert.equal(result.configured, true)
  assert.deepEqual([result.namespace, result.task], ['shop', 'bills'])
  for (const [name, value] of Object.entries(options)) assert.equal(result.options[name], value)
}

/** One message, a batch to a partition in its order, and one that was pushed before. */
async function pushAndPop(queen) {
  const message = { data: { n: 0 }, transactionId: 'only-once' }
  const [one] = await queen.queue('plain').push(message)
  assert.equal(one.status, 'queued')
  const [again] = await queen.queue('plain').push(message)
  assert.equal(again.status, 'duplicate')
  const many = await queen.queue('plain').partition('ann').push(items(1, 2, 3, 4, 5))
  assert.deepEqual(many.map((result) => result.status), Array(5).fill('queued'))

  const messages = await queen.queue('plain').partition('ann').batch(10).wait(false).pop()
  assert.deepEqual(numbers(messages), [1, 2, 3, 4, 5])
  assert.equal((await queen.ack(messages)).success, true)
  const [first] = await queen.queue('plain').batch(1).pop()
  assert.deepEqual([first.data, first.transactionId], [{ n: 0 }, 'only-once'])
  assert.equal((await queen.ack(first)).success, true)
  assert.deepEqual(await queen.queue('plain').batch(10).wait(false).pop(), [])
}

/** Any JSON comes back as it was sent. */
async function payloads(queen) {
  const sent = [null, true, 1.5, 'zwölf €', [], {}, { deep: [{ er: null }] }]
  await queen.queue('payloads').push(sent.map((data) => ({ data })))
  const messages = await queen.queue('payloads').batch(20).wait(false).pop()
  assert.deepEqual(messages.map((message) => message.data), sent)
}

/** A message that failed comes again, and is a dead letter when it failed once too often. */
async function nackAndDeadLetter(queen) {
  await queen.queue('failing').config({ retryLimit: 1, retryDelay: 0 }).create()
  await queen.queue('failing').push(items(1, 2))
  for (let delivery = 0; delivery < 2; delivery += 1) {
    const [message] = await queen.queue('failing').batch(1).pop()
    assert.equal(message.data.n, 1)
    assert.equal((await queen.ack(message, false, { error: 'no stock' })).success, true)
  }
  const [message] = await queen.queue('failing').batch(1).pop()
  assert.equal(message.data.n, 2)
  assert.equal((await queen.ack(message)).success, true)
}

async function renew(queen) {
  await queen.queue('slow').push({ data: {} })
  const messages = await queen.queue('slow').batch(1).pop()
  const one = await queen.renew(messages[0])
  assert.equal(one.success, true)
  assert.ok(one.newExpiresAt)
  const [same] = await queen.renew(messages)
  assert.equal(same.success, true)
  assert.equal((await queen.ack(messages)).success, true)
}

/** An ack and two pushes together; and none of them when the ack cannot be. */
async function transaction(queen) {
  await queen.queue('input').push(items(1))
  const [message] = await queen.queue('input').batch(1).pop()
  const committed = await queen.transaction().ack(message).queue('output').push(items(2, 3)).commit()
  assert.equal(committed.success, true)
  assert.equal(committed.results.length, 3)
  assert.deepEqual(await queen.queue('input').batch(1).wait(false).pop(), [])
  const made = await queen.queue('output').batch(5).wait(false).pop()
  assert.deepEqual(numbers(made), [2, 3])
  assert.equal((await queen.ack(made)).success, true)

  const stranger = { ...message, transactionId: 'never-pushed' }
  await assert.rejects(() => queen.transaction().ack(stranger).queue('output').push(items(4)).commit())
  assert.deepEqual(await queen.queue('output').batch(5).wait(false).pop(), [])
}

/** A handler gets everything in order per partition, and again what it failed at; another group gets it too. */
async function consume(queen) {
  for (const partition of ['ann', 'bob']) {
    const messages = [...Array(10).keys()].map((n) => ({ data: { partition, n } }))
    await queen.queue('work').partition(partition).push(messages)
  }
  await consumeAll(queen, 'first')
  await consumeAll(queen, 'second')
}

async function consumeAll(queen, group) {
  const seen = { ann: [], bob: [] }
  const done = new AbortController()
  let failures = 1
  const handle = async (message) => {
    const { partition, n } = message.data
    if (n === 3 && failures > 0) {
      failures -= 1
      throw new Error('not this time')
    }
    seen[partition].push(n)
    if (seen.ann.length + seen.bob.length === 20) done.abort()
  }
  const consumer = queen.queue('work').group(group).batch(4).each().subscriptionMode('all')
  await consumer.consume(handle, { signal: done.signal })
  assert.deepEqual(seen, { ann: [...Array(10).keys()], bob: [...Array(10).keys()] })
}

/** While the queue is still empty: the consumer waits, and a push wakes it. Leases are renewed meanwhile. */
async function consumeBatches(queen) {
  const got = []
  const done = new AbortController()
  await queen.queue('batches').create()
  const consumer = queen.queue('batches').group('waiting').batch(3).renewLease(true, 1000)
  const consuming = Promise.resolve(
    consumer.consume(
      async (messages) => {
        got.push(...numbers(messages))
        if (got.length === 6) done.abort()
      },
      { signal: done.signal }
    )
  )
  await queen.queue('batches').push(items(0, 1, 2, 3, 4, 5))
  await consuming
  assert.deepEqual(got, [0, 1, 2, 3, 4, 5])
}

/** A pop can name a namespace and a task instead of a queue. */
async function namespaces(queen) {
  for (const [queue, task] of [['mail-a', 'send'], ['mail-b', 'receive']]) {
    await queen.queue(queue).namespace('mail').task(task).create()
    await queen.queue(queue).push({ data: { queue } })
  }
  const [sent] = await queen.queue().namespace('mail').task('send').batch(5).wait(false).pop()
  assert.deepEqual(sent.data, { queue: 'mail-a' })
  assert.equal((await queen.ack(sent)).success, true)
  const [received] = await queen.queue().namespace('mail').batch(5).wait(false).pop()
  assert.deepEqual(received.data, { queue: 'mail-b' })
  assert.equal((await queen.ack(received)).success, true)
}

const STEPS = [
  configure,
  pushAndPop,
  payloads,
  nackAndDeadLetter,
  renew,
  transaction,
  consume,
  consumeBatches,
  namespaces,
]

const queen = new Queen({ url: process.argv[2], handleSignals: false })
for (const step of STEPS) {
  await step(queen)
  console.log(`done: ${step.name}`)
}
await queen.close()
process.exit(0)
