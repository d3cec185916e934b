// BullMQ on Node: 100 jobs at once. The same verbs and marks as probe.py.
import { fstatSync, openSync, readFileSync, writeSync } from 'node:fs'
import { createRequire } from 'node:module'

const require = createRequire(process.env.BENCH_MODULES + '/')
const { Queue, QueueEvents, Worker } = require('bullmq')
const [verb, url, count] = process.argv.slice(2)
const { hostname: host, port } = new URL(url)
const connection = { host, port: Number(port), maxRetriesPerRequest: null }
const file = process.env.BENCH_MARKS
const marks = openSync(file, 'a')
const TEXT = 'x'.repeat(100)
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

function mark(began) {
  const record = Buffer.alloc(16)
  record.writeBigInt64LE(process.hrtime.bigint(), 0)
  record.writeBigInt64LE(BigInt(began), 8)
  writeSync(marks, record)
}

async function timed(work) {
  const began = process.hrtime.bigint()
  const cpu = process.cpuUsage()
  await work()
  const spent = process.cpuUsage(cpu)
  return { seconds: Number(process.hrtime.bigint() - began) / 1e9, cpu: (spent.user + spent.system) / 1e6 }
}

async function pickUp(one, times) {
  const ms = []
  for (let i = 0; i < times; i++) {
    const size = fstatSync(marks).size
    await one(process.hrtime.bigint().toString())
    while (fstatSync(marks).size < size + 16) await sleep(1)
    const record = readFileSync(file).subarray(size)
    ms.push(Number(record.readBigInt64LE(0) - record.readBigInt64LE(8)) / 1e6)
    await sleep(10)
  }
  return { ms }
}

async function roundTrips(queue, times) {
  const events = new QueueEvents('bench', { connection })
  await events.waitUntilReady()
  const ms = []
  for (let i = 0; i <= times; i++) {
    const began = process.hrtime.bigint()
    const job = await queue.add('nothing', { began: '-1', text: TEXT })
    await job.waitUntilFinished(events, 30000)
    ms.push(Number(process.hrtime.bigint() - began) / 1e6)
    await sleep(5)
  }
  await events.close()
  return { ms: ms.slice(1) }
}

if (verb === 'work') {
  const handle = async (job) => {
    mark(job.data.began)
    return job.data.began === '-1' ? job.data.text : null
  }
  const limiter = process.env.BENCH_RATE ? { max: Number(process.env.BENCH_RATE), duration: 1000 } : undefined
  const worker = new Worker('bench', handle, { connection, concurrency: 100, limiter })
  worker.on('error', (error) => console.error(error.message))
  process.on('SIGTERM', () => worker.close().then(() => process.exit(0)))
} else {
  const queue = new Queue('bench', { connection })
  const one = (began) => queue.add('nothing', { began, text: TEXT })
  let found
  if (verb === 'one') {
    await one('0')
    found = await timed(async () => { for (let i = 1; i < count; i++) await one('0') })
  } else if (verb === 'many') {
    await one('0')
    found = await timed(async () => {
      for (let start = 1; start < count; start += 1000) {
        const part = Math.min(1000, count - start)
        await queue.addBulk(Array.from({ length: part }, () => ({ name: 'nothing', data: { began: '0', text: TEXT } })))
      }
    })
  } else if (verb === 'pick_up') {
    found = await pickUp(one, Number(count))
  } else {
    found = await roundTrips(queue, Number(count))
  }
  console.log(JSON.stringify(found))
  await queue.close()
}
